"""Tensors in memory → storages to be written: who shares memory with whom, and the bytes of each group.

Tensors share a storage when they have the same storage object or overlapping addresses, never because both are
empty. A storage holds the bytes from the first to the last one that its tensors cover: a slice of a large buffer
stores the slice, and bytes that no tensor covers are written as zeros, so freed memory never leaks into a file.

Bytes are handed out in blocks, whole chunks each but for the last; only a storage with gaps, or one on a device,
is staged through extra memory. A block is good until the next one is asked for.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ckpt.errors import UnsupportedStateError
from ckpt.format.digests import CHUNK_BYTES
from ckpt.format.dtypes import bits, name_of
from ckpt.format.records import TensorRecord, extent, is_dense, is_permuted, normal_strides, overlaps

BLOCK_BYTES = 16 * CHUNK_BYTES
_WIDEST = 16  # bytes of the widest element
_PIECE_BYTES = 4 * CHUNK_BYTES  # of a permuted tensor: it is copied, joined and cut before it is written

Blocks = Callable[[], Iterator[memoryview]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A storage to be written: its size, and its bytes as blocks of whole chunks; the next may overwrite the last.

    ``flat`` gives them, if there are any, as one tensor of bytes on its device, without a copy, where they lie so;
    ``memory`` the memory that they are taken from, also where they lie in it in another order or with gaps.
    ``begin`` is called some time before ``blocks``, where bytes have to be made first and other threads can make them.
    ``lasting`` blocks stay as they are when others are asked for; where they lie in mapped files, nobody wrote to
    those, and the writer lets go of their pages.
    ``found`` takes what a killed writer left in their place, which may be anything and shorter, and gives a source that
    hands out parts of that where they are right.
    """

    size_bytes: int
    blocks: Blocks
    flat: Callable[[], Tensor] | None = None
    memory: Callable[[], Tensor] | None = None
    begin: Callable[[], None] | None = None
    lasting: bool = False
    found: "Callable[[memoryview], Source] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A tensor with the addresses it covers, end excluded, and the address of its storage."""

    name: str
    tensor: Tensor
    start: int
    end: int
    base: int


def collect(tensors: Mapping[str, Tensor]) -> tuple[tuple[TensorRecord, ...], tuple[Source, ...]]:
    """Records in the mapping's order, and the storages they view in canonical order.

    Args:
        tensors: Name → tensor of any device; plain tensors and parameters.

    Raises:
        UnsupportedStateError: a tensor has no faithful form on disk.
    """
    placed = {name: _place(name, tensor) for name, tensor in tensors.items()}
    groups = _groups(list(placed.values()))
    group_of = {member.name: index for index, group in enumerate(groups) for member in group}
    order: dict[int, int] = {}
    for name in sorted(placed, key=lambda name: name.encode("utf-8")):
        order.setdefault(group_of[name], len(order))
    starts = [_start(group) for group in groups]
    records = tuple(
        _record(member, storage=order[group_of[name]], start=starts[group_of[name]]) for name, member in placed.items()
    )
    by_group: list[list[TensorRecord]] = [[] for _ in groups]
    for record in records:
        by_group[group_of[record.name]].append(record)
    sources = [_source(groups[group], by_group[group], start=starts[group]) for group in order]
    return records, tuple(sources)


def row_major(name: str, tensor: Tensor) -> Source:
    """The elements of one tensor in row-major order, whatever its strides: a piece of a larger one.

    Raises:
        UnsupportedStateError: it has no faithful form on disk.
    """
    placed = _place(name, tensor)
    plain, size = placed.tensor, placed.tensor.numel() * placed.tensor.element_size()
    if plain.is_contiguous():
        return Source(size_bytes=size, blocks=lambda: _direct(plain, placed.start, size))
    return Source(size_bytes=size, blocks=lambda: rejoin(_rows(plain)))


def _place(name: str, tensor: Tensor) -> _Placed:
    _refuse(name, tensor)
    plain = tensor.detach().resolve_conj().resolve_neg()
    width = plain.element_size()
    size = width * (plain.numel() if plain.is_contiguous() else extent(plain.shape, plain.stride()))
    storage = plain.untyped_storage()
    if size and plain.storage_offset() * width + size > storage.nbytes():
        raise UnsupportedStateError(
            name, "a tensor whose memory was released (its storage was resized)", "gather it before saving"
        )
    start = plain.data_ptr() if size else 0
    return _Placed(name=name, tensor=plain, start=start, end=start + size, base=storage.data_ptr())


def _refuse(name: str, tensor: Tensor) -> None:
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        raise UnsupportedStateError(
            name, f"a tensor subclass {type(tensor).__name__}", "store the plain tensors it is made of"
        )
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise UnsupportedStateError(
            name, f"a {'nested ' if tensor.is_nested else ''}tensor of layout {tensor.layout}", "store its parts"
        )
    if tensor.is_meta or tensor._is_zerotensor():
        kind = "meta" if tensor.is_meta else "symbolic zero"
        raise UnsupportedStateError(name, f"a {kind} tensor, which has no bytes", "materialise it first")
    if name_of(tensor.dtype) is None:
        raise UnsupportedStateError(
            name, f"a tensor of dtype {tensor.dtype}", "store its integer representation and its scales"
        )


def _groups(placed: list[_Placed]) -> list[list[_Placed]]:
    """Tensors that share memory, together; each empty tensor by itself."""
    groups: list[list[_Placed]] = [[member] for member in placed if member.end == member.start]
    by_storage: dict[tuple[torch.device, int], list[_Placed]] = {}
    for member in placed:
        if member.end > member.start:
            by_storage.setdefault((member.tensor.device, member.base), []).append(member)
    by_device: dict[torch.device, list[tuple[int, list[_Placed]]]] = {}
    for (device, _), members in by_storage.items():
        by_device.setdefault(device, []).append((min(member.start for member in members), members))
    for spans in by_device.values():
        end = 0
        for start, members in sorted(spans, key=lambda span: span[0]):
            if start < end:
                groups[-1].extend(members)
            else:
                groups.append(members)
            end = max(end, *(member.end for member in members))
    return groups


def _start(group: list[_Placed]) -> int:
    """The group's first byte, moved back to where every element of the group is aligned in its storage."""
    first = min(group, key=lambda member: member.start)
    step = max(member.tensor.element_size() for member in group)
    start = first.start - (first.start - first.base) % step
    for member in group:
        if (member.start - start) % member.tensor.element_size():
            raise UnsupportedStateError(
                member.name, "a view at an address that its element size does not divide", "store its .clone()"
            )
    return start


def _record(member: _Placed, *, storage: int, start: int) -> TensorRecord:
    tensor = member.tensor
    dtype = name_of(tensor.dtype)
    assert dtype is not None, "refused before"
    return TensorRecord(
        name=member.name,
        dtype=dtype,
        shape=tuple(tensor.shape),
        strides=normal_strides(tensor.shape, tensor.stride()),
        offset=member.start - start if member.end > member.start else 0,
        storage=storage,
    )


def _source(group: list[_Placed], records: list[TensorRecord], *, start: int) -> Source:
    size = max(member.end for member in group) - start
    tensor, memory = group[0].tensor, partial(_flat, group[0].tensor, start, size)
    if not (len(group) == 1 and records[0].is_contiguous):
        if is_permuted(records[0], len(records)):
            return Source(size_bytes=size, blocks=lambda: rejoin(_rows(tensor)), memory=memory)
        if not _covered(group, start):
            return Source(size_bytes=size, blocks=lambda: _gathered(group, start, size), memory=memory)
    return Source(size_bytes=size, blocks=lambda: _direct(tensor, start, size), flat=memory, memory=memory)


def _covered(group: list[_Placed], start: int) -> bool:
    """Whether dense tensors cover every byte from ``start`` on."""
    reached = start
    for member in sorted(group, key=lambda member: member.start):
        if member.start > reached:
            return False
        if is_dense(member.tensor.shape, member.tensor.stride()):
            reached = max(reached, member.end)
    return reached == max(member.end for member in group)


def _direct(tensor: Tensor, start: int, size: int) -> Iterator[memoryview]:
    """The memory itself; from a device in blocks through the host."""
    if tensor.device.type == "cpu":
        view = address_view(start, size)
        for offset in range(0, size, BLOCK_BYTES):
            yield view[offset : offset + BLOCK_BYTES]
        return
    flat = _flat(tensor, start, size)
    staging = torch.empty(min(size, BLOCK_BYTES), dtype=torch.uint8, pin_memory=tensor.is_cuda)
    for offset in range(0, size, BLOCK_BYTES):
        room = min(BLOCK_BYTES, size - offset)
        yield memory_of(staging[:room].copy_(flat[offset : offset + room]))


def _flat(tensor: Tensor, start: int, size: int) -> Tensor:
    """The bytes from an address on, as a tensor; ``tensor`` is the owner of the first."""
    if tensor.device.type == "cpu":  # other storages may own the rest: by address
        return torch.frombuffer(address_view(start, size), dtype=torch.uint8)
    storage = tensor.untyped_storage()
    shift = start - storage.data_ptr()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)[shift : shift + size]


def _gathered(group: list[_Placed], start: int, size: int) -> Iterator[memoryview]:
    """Zeros, with the tensors' own elements laid over them, a block at a time; the next one overwrites it."""
    whole = torch.empty(-(-min(size, BLOCK_BYTES) // _WIDEST) * _WIDEST, dtype=torch.uint8)
    waiting = sorted(group, key=lambda member: member.start, reverse=True)
    reached: list[_Placed] = []
    for low in range(start, start + size, BLOCK_BYTES):
        room = min(BLOCK_BYTES, start + size - low)
        while waiting and waiting[-1].start < low + room:
            reached.append(waiting.pop())
        reached = [member for member in reached if member.end > low]
        block = whole[: -(-room // _WIDEST) * _WIDEST].zero_()
        for member in reached:
            _overlay(block, bits(member.tensor), member.start - low)
        yield memory_of(block)[:room]


def _overlay(block: Tensor, source: Tensor, place: int) -> None:
    """Copy what of a view lies within a block; ``place`` is its first byte counted from the block's, also negative."""
    width, room = source.element_size(), block.numel()
    end = place + extent(source.shape, source.stride()) * width
    if end <= 0 or place >= room:
        return
    if overlaps(source.shape, source.stride()):
        axis = min((size, axis) for axis, size in enumerate(source.shape) if size > 1)[1]
        parts = list(range(source.shape[axis] if source.stride(axis) else 1))
    elif place >= 0 and end <= room:
        flat = block.view(source.dtype)
        flat.as_strided(source.shape, source.stride(), place // width).copy_(source)
        return
    else:
        axis = max((stride, axis) for axis, stride in enumerate(source.stride()) if source.shape[axis] > 1)[1]
        parts = _overlay_inside(block, source, place, axis)
    for index in parts:
        _overlay(block, source.select(axis, index), place + index * source.stride(axis) * width)


def _overlay_inside(block: Tensor, source: Tensor, place: int, axis: int) -> list[int]:
    """Copy at once the rows of a view that lie in a block as a whole; return those that reach over its ends."""
    step, rows = source.stride(axis) * source.element_size(), source.shape[axis]
    row = source.select(axis, 0)
    row_bytes = extent(row.shape, row.stride()) * source.element_size()
    first = max((-place - row_bytes) // step + 1, 0)
    last = min((block.numel() - place - 1) // step, rows - 1)
    inside = range(max(-(place // step), 0), min((block.numel() - place - row_bytes) // step + 1, rows))
    if not inside:
        return list(range(first, last + 1))
    _overlay(block, source.narrow(axis, inside.start, len(inside)), place + inside.start * step)
    return [*range(first, inside.start), *range(inside.stop, last + 1)]


def _rows(tensor: Tensor) -> Iterator[memoryview]:
    """The elements in row-major order, as many at a time as make a small block; the next ones overwrite them."""
    size = tensor.numel() * tensor.element_size()
    room = torch.empty(min(size, _PIECE_BYTES), dtype=torch.uint8)  # one: from the heap each would lie somewhere else
    for piece in _pieces(bits(tensor)):
        there = room[: piece.numel() * piece.element_size()]
        there.view(piece.dtype).view(piece.shape).copy_(piece)
        yield memory_of(there)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    size = tensor.numel() * tensor.element_size()
    if size <= _PIECE_BYTES:
        yield tensor
        return
    rows = max(_PIECE_BYTES * tensor.shape[0] // size, 1)
    for start in range(0, tensor.shape[0], rows):
        piece = tensor[start : start + rows]
        yield from _pieces(piece if rows > 1 else piece[0])


def rejoin(pieces: Iterator[memoryview]) -> Iterator[memoryview]:
    """The same bytes in blocks of whole chunks; only those of chunks that lie in two pieces are copied."""
    rest = bytearray()
    for piece in pieces:
        missing = -len(rest) % CHUNK_BYTES
        rest += piece[:missing]
        if rest and len(rest) % CHUNK_BYTES == 0:
            yield memoryview(rest)
            rest = bytearray()
        whole = max(len(piece) - missing, 0) // CHUNK_BYTES * CHUNK_BYTES
        if whole:
            yield piece[missing : missing + whole]
        rest += piece[missing + whole :]
    if rest:
        yield memoryview(rest)


def address_view(address: int, size: int) -> memoryview:
    """``size`` bytes at an address; the caller keeps their owner alive."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy; valid while the tensor lives."""
    view = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
    return view.cast("B") if view.nbytes else memoryview(b"")
