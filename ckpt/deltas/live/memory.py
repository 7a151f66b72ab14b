"""Live tensors as the storages of a checkpoint: found by name, refused where they lie otherwise, read as bytes.

Nothing here is guessed: the tensors are described as :func:`ckpt.save` would describe them, and must come out as the
manifest describes those of the checkpoint, ties and strides included. Bytes are read as a checkpoint holds them: of a
lone permuted tensor row-major, with zeros where no tensor covers a storage.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ckpt.errors import LiveMemoryError
from ckpt.format.dtypes import torch_dtype
from ckpt.format.manifest import Manifest
from ckpt.format.records import TensorRecord, contiguous_strides, is_permuted
from ckpt.saving.memory import Source, collect, memory_of

Live = Tensor | NDArray[Any]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


@dataclass(frozen=True, eq=False)
class LiveStorage:
    """One storage in live memory; :class:`ckpt.deltas.sides.Bytes` as the checkpoint holds it.

    ``owner`` names its tensors, for messages.
    """

    owner: str
    users: tuple[TensorRecord, ...]
    source: Source

    def __len__(self) -> int:
        return self.source.size_bytes

    def __getitem__(self, part: slice, /) -> memoryview:
        start, end, _ = part.indices(len(self))
        if start >= end:
            return memoryview(b"")
        if self.source.flat is not None:
            return memory_of(self.source.flat()[start:end].cpu())
        return memoryview(b"".join(_between(self.source.blocks(), start, end)))

    @cached_property
    def memory(self) -> Tensor:
        """All of it as bytes on its device, in the order of addresses; shape (size,), torch.uint8."""
        assert self.source.memory is not None, "collected from tensors"
        with torch.inference_mode(False):  # what is made in that mode cannot be written outside of it
            return self.source.memory()

    @cached_property
    def width(self) -> int:
        """Bytes of the integers that it is compared and written as: an element of its tensors, else 1."""
        widths = {min(record.item_bytes, max(_INTEGERS)) for record in self.users}
        return widths.pop() if len(widths) == 1 else 1

    @property
    def is_plain(self) -> bool:
        """Whether a checkpoint holds its bytes as they lie in memory."""
        return self.source.flat is not None

    @property
    def is_permuted(self) -> bool:
        return is_permuted(self.users[0], len(self.users))

    def integers(self, start: int, end: int) -> Tensor:
        """Bytes ``start`` … ``end`` of :attr:`memory` as integers of :attr:`width`."""
        with torch.inference_mode(False):
            return self.memory[start:end].view(_INTEGERS[self.width])

    def in_memory(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where elements that a checkpoint holds at ``places`` lie in :attr:`memory`, counted in elements."""
        record = self.users[0]
        return _renumbered(places, record, contiguous_strides(record.shape), record.strides)

    def as_stored(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The inverse of :meth:`in_memory`."""
        record = self.users[0]
        return _renumbered(places, record, record.strides, contiguous_strides(record.shape))

    def covers(self, places: NDArray[np.int64]) -> bool:
        """Whether these elements of :attr:`memory` all belong to tensors."""
        if self.is_plain or self.is_permuted:
            return True
        held = np.zeros(len(self), np.bool_)
        for record in self.users:
            width = record.item_bytes
            shape, strides = (*record.shape, width), (*(stride * width for stride in record.strides), 1)
            np.lib.stride_tricks.as_strided(held[record.offset :], shape, strides)[...] = True
        return bool(held[:: self.width][places].all())


def _between(blocks: Iterator[memoryview], start: int, end: int) -> Iterator[bytes]:
    reached = 0
    for block in blocks:
        yield bytes(block[max(start - reached, 0) : max(end - reached, 0)])
        reached += len(block)
        if reached >= end:
            return


def _renumbered(
    places: NDArray[np.int64], record: TensorRecord, old: tuple[int, ...], new: tuple[int, ...]
) -> NDArray[np.int64]:
    """Elements of a dense tensor, numbered by some strides, numbered by others."""
    parts = record.item_bytes // min(record.item_bytes, max(_INTEGERS))
    whole, part = np.divmod(places, parts)
    found = np.zeros_like(places)
    for size, before, after in zip(record.shape, old, new, strict=True):
        found += whole // before % size * after
    return found * parts + part


def live_storages(manifest: Manifest, tensors: Mapping[str, Live]) -> tuple[LiveStorage, ...]:
    """The storages of a checkpoint in live tensors, in the manifest's order.

    Args:
        manifest: Of the checkpoint, without pieces.
        tensors: Tensor name → tensor of any device, or NumPy array; other names are not looked at. An array of
            unsigned integers stands for elements of any dtype of that width.

    Raises:
        LiveMemoryError: a tensor is missing, cannot be written, or lies otherwise than the checkpoint's.
        UnsupportedStateError: a tensor has no memory of its own that a checkpoint could hold.
    """
    own = {name: _tensor(record, tensors.get(name)) for name, record in manifest.by_name.items()}
    records, sources = collect(own)
    for record in sorted(records, key=lambda record: record.name.encode("utf-8")):  # as storages are numbered
        _compare(record, manifest.by_name[record.name])
    storages = tuple(
        LiveStorage(owner=manifest.owner(index), users=manifest.users[index], source=source)
        for index, source in enumerate(sources)
    )
    _refuse_read_only(storages)
    return storages


def _tensor(record: TensorRecord, value: Live | None) -> Tensor:
    expected = f"a tensor or an array of {record.dtype}"
    if isinstance(value, np.ndarray):
        if not value.flags.writeable:
            raise LiveMemoryError(record.name, "an array that is read only", "memory that can be written")
        try:
            value = torch.from_numpy(value)
        except (TypeError, ValueError) as error:
            raise LiveMemoryError(record.name, f"an array that torch cannot share ({error})", expected) from None
        if value.dtype in _UNSIGNED and value.itemsize == record.item_bytes:
            value = value.view(torch_dtype(record.dtype))
    if not isinstance(value, Tensor):
        raise LiveMemoryError(record.name, "missing" if value is None else f"a {type(value).__name__}", expected)
    if value.is_conj() or value.is_neg():
        raise LiveMemoryError(record.name, "conjugated or negated when it is read", "the elements themselves")
    return value


def _compare(found: TensorRecord, expected: TensorRecord) -> None:
    for what in ("dtype", "shape", "strides"):
        own, wanted = getattr(found, what), getattr(expected, what)
        if own != wanted:
            raise LiveMemoryError(found.name, f"of {what} {own}", f"{what} {wanted}")
    if found != expected:
        raise LiveMemoryError(
            found.name,
            f"at byte {found.offset} of storage {found.storage}, counted by what shares memory",
            f"byte {expected.offset} of storage {expected.storage}: memory shared by the same tensors",
        )


def _refuse_read_only(storages: tuple[LiveStorage, ...]) -> None:
    """Torch does not know of memory that is read only; writing to it would end the process."""
    ranges = _writable()
    starts = [start for start, _ in ranges]
    for storage in storages:
        if not len(storage) or storage.memory.device.type != "cpu":
            continue
        address = storage.memory.data_ptr()
        place = bisect_right(starts, address) - 1
        if place < 0 or address + len(storage) > ranges[place][1]:
            raise LiveMemoryError(storage.users[0].name, "in memory that is read only", "memory that can be written")


def _writable() -> list[tuple[int, int]]:
    """Addresses of this process that can be written, ascending; neighbours joined."""
    found: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, mode = line.split(maxsplit=2)[:2]
        if mode[1] == "w":
            start, end = (int(number, 16) for number in place.split("-"))
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, end))
    return found
