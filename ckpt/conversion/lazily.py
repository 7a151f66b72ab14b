"""Write tensors that are read when their turn comes, so that only one of them is in memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ckpt.disk.hashing import Progress
from ckpt.format.records import TensorRecord, normal_strides
from ckpt.format.state import Node
from ckpt.saving.memory import Source, collect
from ckpt.saving.writer import write


@dataclass(frozen=True, slots=True, kw_only=True)
class Lazy:
    """A tensor known by its layout; ``blocks`` gives its bytes as :class:`ckpt.saving.memory.Source` has them.

    ``dtype`` is a row of the table, ``strides`` count elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    blocks: Callable[[], Iterator[memoryview]]


def blocks_of(name: str, load: Callable[[], Tensor]) -> Callable[[], Iterator[memoryview]]:
    """The bytes of a tensor that is loaded when they are asked for."""

    def blocks() -> Iterator[memoryview]:
        _, (source,) = collect({name: load()})
        yield from source.blocks()

    return blocks


def write_lazily(
    out: Path | str, *, state: tuple[Node, ...], tensors: Sequence[Lazy], progress: Progress | None
) -> None:
    """Write a checkpoint of tensors that share no memory, in state order."""
    order = {item.name: index for index, item in enumerate(sorted(tensors, key=lambda item: item.name.encode()))}
    records = [_record(item, order[item.name]) for item in tensors]
    sources: list[Source] = [
        Source(size_bytes=record.extent_bytes, blocks=item.blocks)
        for item, record in sorted(zip(tensors, records, strict=True), key=lambda pair: pair[1].storage)
    ]
    write(out, records=records, sources=sources, state=state, metadata={}, attachments={}, progress=progress)


def _record(item: Lazy, storage: int) -> TensorRecord:
    strides = normal_strides(item.shape, item.strides)
    return TensorRecord(name=item.name, dtype=item.dtype, shape=item.shape, strides=strides, offset=0, storage=storage)
