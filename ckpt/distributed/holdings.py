"""What each process holds of a state, and who of them stores what: pure functions of values that travel between them.

Each process describes its :class:`Holding`. The coordinator makes one :class:`Agreement` of all of them: a state,
records and pieces as the manifest will have them, and for each storage the process that writes it. Replicas are shared
out so that each writes about as many bytes; a box that several processes hold is written once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from torch import Tensor

from ckpt.distributed.parts import Part, parts_of
from ckpt.distributed.trees import united
from ckpt.errors import UnsupportedStateError
from ckpt.format.boxes import Box, whole
from ckpt.format.dtypes import BY_NAME
from ckpt.format.piece_rules import too_fine, untiled
from ckpt.format.records import PieceRecord, TensorRecord, contiguous_strides
from ckpt.format.state import TENSORS, Node
from ckpt.saving.memory import Source, collect, row_major

Key = tuple[str, tuple[int, ...] | None]  # a storage: the first of its tensors, and where it is a piece its offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Whole tensors that share memory, as records of one storage, sorted by name."""

    records: tuple[TensorRecord, ...]
    size_bytes: int

    @property
    def key(self) -> Key:
        return self.records[0].name, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A tensor of which a process holds boxes. ``tied`` names the first tensor in the same memory, maybe itself."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    tied: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one process holds."""

    state: tuple[Node, ...]
    groups: tuple[Group, ...]
    cuts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What is to be written and by whom; ``sizes``, ``keys`` and ``writers`` are those of the storages."""

    state: tuple[Node, ...]
    records: tuple[TensorRecord, ...]
    pieces: tuple[PieceRecord, ...]
    sizes: tuple[int, ...]
    keys: tuple[Key, ...]
    writers: tuple[int, ...]


def holding_of(state: tuple[Node, ...], tensors: Mapping[str, Tensor]) -> tuple[Holding, dict[Key, Source]]:
    """What this process holds, and the bytes of each storage that it may be asked to write.

    Raises:
        UnsupportedStateError: a tensor has no faithful form on disk.
    """
    parts = {name: parts_of(name, tensor) for name, tensor in tensors.items()}
    is_whole = {name: [part.box for part in held] == [whole(tensors[name].shape)] for name, held in parts.items()}
    groups, sources = _groups({name: held[0].tensor for name, held in parts.items() if is_whole[name]})
    cuts: list[Cut] = []
    first: dict[object, str] = {}
    for name, held in parts.items():
        if held and not is_whole[name]:
            cut = _cut(name, tensors[name], held, first)
            cuts.append(cut)
            if cut.tied == name:
                sources |= {(name, part.box.offsets): row_major(name, part.tensor) for part in held}
    return Holding(state=state, groups=tuple(groups), cuts=tuple(cuts)), sources


def _groups(tensors: Mapping[str, Tensor]) -> tuple[list[Group], dict[Key, Source]]:
    records, sources = collect(tensors)
    members: list[list[TensorRecord]] = [[] for _ in sources]
    for record in records:
        members[record.storage].append(replace(record, storage=0))
    pairs = zip(members, sources, strict=True)
    groups = [Group(records=_sorted(own), size_bytes=source.size_bytes) for own, source in pairs]
    return groups, {group.key: source for group, source in zip(groups, sources, strict=True)}


def _sorted(records: Sequence[TensorRecord]) -> tuple[TensorRecord, ...]:
    return tuple(sorted(records, key=lambda record: record.name.encode("utf-8")))


def _cut(name: str, tensor: Tensor, held: Sequence[Part], first: dict[object, str]) -> Cut:
    (record,), _ = collect({name: held[0].tensor})
    memory = tuple(
        (part.box, part.tensor.untyped_storage()._cdata, part.tensor.storage_offset(), part.tensor.stride())
        for part in held
    )
    boxes = tuple(part.box for part in held)
    tied = first.setdefault((record.dtype, tuple(tensor.shape), memory), name)
    return Cut(name=name, dtype=record.dtype, shape=tuple(tensor.shape), boxes=boxes, tied=tied)


@dataclass(frozen=True, slots=True)
class _Storage:
    size_bytes: int
    holders: list[int]
    box: Box | None = None


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Name → record, and the storages that it uses; and these storages."""

    records: dict[str, TensorRecord]
    uses: dict[str, list[Key]]
    storages: dict[Key, _Storage]


def agreed(holdings: Sequence[Holding]) -> Agreement:
    """What the processes write together.

    Args:
        holdings: One of each process, in the order of their ranks.

    Raises:
        UnsupportedStateError: they do not describe one state: shards of a tensor leave a gap or overlap, or two
            processes say different things of one tensor.
    """
    state = united([holding.state for holding in holdings])
    found = _Tensors({}, {}, {})
    _add_groups(found, holdings)
    _add_cuts(found, holdings)
    names = [node.name for node in state if node.kind in TENSORS]
    numbers: dict[Key, int] = {}
    for name in sorted(names, key=str.encode):
        if name not in found.uses:
            raise UnsupportedStateError(name, "a tensor that none of the processes holds", "save with those that do")
        for key in found.uses[name]:
            numbers.setdefault(key, len(numbers))
    storages = [found.storages[key] for key in numbers]
    return Agreement(
        state=state,
        records=tuple(replace(found.records[name], storage=numbers[found.uses[name][0]]) for name in names),
        pieces=tuple(_pieces(names, found, numbers)),
        sizes=tuple(storage.size_bytes for storage in storages),
        keys=tuple(numbers),
        writers=shared_out(storages),
    )


def _add_groups(found: _Tensors, holdings: Sequence[Holding]) -> None:
    seen: dict[str, tuple[int, Group]] = {}
    equal: dict[Group, Group] = {}
    for rank, group in ((rank, group) for rank, holding in enumerate(holdings) for group in holding.groups):
        group = equal.setdefault(group, group)  # the same object, so that records of one are not compared with all
        for record in group.records:
            other, known = seen.setdefault(record.name, (rank, group))
            if known != group:
                raise _disagreement(record.name, other, _words_of_group(known), rank, _words_of_group(group))
            found.records[record.name], found.uses[record.name] = record, [group.key]
        found.storages.setdefault(group.key, _Storage(group.size_bytes, [])).holders.append(rank)


def _add_cuts(found: _Tensors, holdings: Sequence[Holding]) -> None:
    seen: dict[str, tuple[int, Cut]] = {}
    holders: dict[str, dict[Box, list[int]]] = {}
    for rank, cut in ((rank, cut) for rank, holding in enumerate(holdings) for cut in holding.cuts):
        other, known = seen.setdefault(cut.name, (rank, cut))
        if (known.dtype, known.shape, known.tied) != (cut.dtype, cut.shape, cut.tied):
            raise _disagreement(cut.name, other, _words_of_cut(known), rank, _words_of_cut(cut))
        for box in cut.boxes:
            holders.setdefault(cut.name, {}).setdefault(box, []).append(rank)
    for name, (rank, cut) in seen.items():
        if name in found.uses:
            raise _disagreement(name, rank, _words_of_cut(cut), found.storages[found.uses[name][0]].holders[0], "whole")
        boxes = sorted(holders[name], key=lambda box: box.offsets)
        _check_boxes(name, cut, boxes, holders)
        found.records[name] = _record(cut)
        found.uses[name] = [(cut.tied, box.offsets) for box in boxes]
        item_bytes = BY_NAME[cut.dtype].size_bytes
        for box in boxes if cut.tied == name else ():
            found.storages[name, box.offsets] = _Storage(prod(box.sizes) * item_bytes, holders[name][box], box)


def _check_boxes(name: str, cut: Cut, boxes: Sequence[Box], holders: Mapping[str, Mapping[Box, object]]) -> None:
    fault, remedy = too_fine(cut.shape, boxes), "redistribute it to coarser shards, for example in part to Replicate()"
    if fault is None:
        fault, remedy = untiled(cut.shape, boxes), "save with all processes that hold a shard, each its own"
    if fault is None and holders[name].keys() != holders[cut.tied].keys():
        fault = f"other boxes than '{cut.tied}', which lies in the same memory"
    if fault is not None:
        raise UnsupportedStateError(name, f"a tensor whose shards have {fault}", remedy)


def _record(cut: Cut) -> TensorRecord:
    strides = contiguous_strides(cut.shape)
    return TensorRecord(name=cut.name, dtype=cut.dtype, shape=cut.shape, strides=strides, offset=0, storage=0)


def _pieces(names: Sequence[str], found: _Tensors, numbers: Mapping[Key, int]) -> Iterator[PieceRecord]:
    for index, name in enumerate(names):
        for key in found.uses[name]:
            box = found.storages[key].box
            if box is not None:
                yield PieceRecord(tensor=index, offsets=box.offsets, sizes=box.sizes, storage=numbers[key])


def shared_out(storages: Sequence[_Storage]) -> tuple[int, ...]:
    """Who writes each storage: of those that hold it the one with the fewest bytes so far, the largest ones first."""
    loads: dict[int, int] = {}
    writers = [0] * len(storages)
    for index in sorted(range(len(storages)), key=lambda index: -storages[index].size_bytes):
        writer = min(storages[index].holders, key=lambda rank: (loads.get(rank, 0), rank))
        loads[writer] = loads.get(writer, 0) + storages[index].size_bytes
        writers[index] = writer
    return tuple(writers)


def _words_of_group(group: Group) -> str:
    return ", ".join(f"'{item.name}' {item.dtype} {item.shape} at byte {item.offset}" for item in group.records[:3])


def _words_of_cut(cut: Cut) -> str:
    return f"shards of {cut.dtype} {cut.shape}, in the memory of '{cut.tied}'"


def _disagreement(name: str, rank: int, found: str, other_rank: int, other: str) -> UnsupportedStateError:
    return UnsupportedStateError(
        name,
        f"a tensor of which rank {rank} holds {found}, and rank {other_rank} {other}",
        "give what differs from process to process names of its own, or save it as a DTensor",
    )
