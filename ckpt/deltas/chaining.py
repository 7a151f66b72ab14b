"""Frames that met and stay as they are: put one after the other into a frame of the codec ``chain``.

A *group* is the least run of chunks that no frame crosses: whatever wrote one of them wrote no other chunk.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ckpt.deltas.codecs import chain
from ckpt.deltas.codecs.chain import Step
from ckpt.deltas.delta import Action, Frame
from ckpt.deltas.lineage import Chunk, Layer, Piece
from ckpt.deltas.wire import MAX_FRAME_BYTES, MAX_GROWTH_BYTES
from ckpt.format.digests import CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Group:
    """Chunks of the last target, and all frames that wrote them, in the order in which they are decoded."""

    chunks: range
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """The frame of a group: what it reads of the base, and its encoded bytes."""

    base_offset: int
    base_size: int
    encoded: bytes


def groups_of(chunks: Mapping[int, Chunk], wanted: Iterable[int]) -> dict[int, Group]:
    """The group of each wanted chunk, by each chunk in it."""
    groups: dict[int, Group] = {}
    for number in wanted:
        if number not in groups:
            group = _closed(number, chunks)
            groups |= dict.fromkeys(group.chunks, group)
    return groups


def _closed(number: int, chunks: Mapping[int, Chunk]) -> Group:
    pieces: dict[tuple[int, int], Piece] = {}
    inside, coming = set[int](), {number}
    while coming:
        inside |= coming
        met = [piece for each in coming if each in chunks for piece in chunks[each].written]
        pieces |= {(piece.layer, piece.frame.offset): piece for piece in met}
        coming = {each for piece in met for each in piece.frame.chunks} - inside
    ordered = tuple(pieces[key] for key in sorted(pieces))
    return Group(range(min(inside), max(inside) + 1), ordered)


def chained(group: Group, layers: Sequence[Layer]) -> Chain | None:
    """The frame of a group; None where it cannot be one."""
    sizes = {layer.chunks.size_bytes for layer in layers}
    start, end = group.chunks.start * CHUNK_BYTES, min(group.chunks.stop * CHUNK_BYTES, max(sizes))
    if end - start > MAX_FRAME_BYTES:
        return None
    if len(sizes) == 1 and all(_in_place(piece.frame) for piece in group.pieces):
        reads = any(piece.frame.base_size for piece in group.pieces) and not _all_came(group)
        parts = [_shifted(piece, start, end - start) for piece in group.pieces]
        return _joined(parts, start if reads else 0, end - start if reads else 0, end - start)
    return _through_sizes(group, layers)


def _in_place(frame: Frame) -> bool:
    return not frame.base_size or (frame.base_offset, frame.base_size) == (frame.offset, frame.size)


def _all_came(group: Group) -> bool:
    """Whether every chunk came whole before it was changed, so that nothing of the base is read."""
    whole = {each for piece in group.pieces if not piece.frame.base_size for each in piece.frame.chunks}
    first = {each: piece for piece in reversed(group.pieces) for each in piece.frame.chunks}
    return whole == set(group.chunks) and not any(piece.frame.base_size for piece in first.values())


def _shifted(piece: Piece, start: int, size: int) -> list[Step] | None:
    """A frame as steps of a group that begins at byte ``start``."""
    frame, shift = piece.frame, piece.frame.offset - start
    steps = _steps(piece)
    if frame.codec != "chain":
        return [replace(step, read_offset=shift if step.read_size else 0, offset=shift) for step in steps]
    if shift == 0 and frame.size == size:
        return steps
    if any(step.whole for step in steps) or not frame.base_size:
        return None
    return [
        replace(step, read_offset=step.read_offset + (shift if step.read_size else 0), offset=step.offset + shift)
        for step in steps
    ]


def _through_sizes(group: Group, layers: Sequence[Layer]) -> Chain | None:
    """Of a storage whose size changes: each layer writes all of it, or some of it in place."""
    parts: list[list[Step] | None] = []
    base, size, new = (0, 0), -1, layers[0].operation.action is Action.NEW
    for depth, pieces in groupby(group.pieces, key=lambda piece: piece.layer):
        here, after = list(pieces), layers[depth].chunks.size_bytes
        frame = here[0].frame
        if len(here) == 1 and frame.size == after and frame.codec == "chain":
            base = base if parts else (frame.base_offset, frame.base_size)
            if parts and (frame.base_offset, frame.base_size) != (0, size):
                return None
            parts.append(_steps(here[0]))
        elif len(here) == 1 and frame.size == after:
            base, at = (base, frame.base_offset) if parts else ((frame.base_offset, frame.base_size), 0)
            parts.append([replace(step, read_offset=at, whole=True) for step in _steps(here[0])])
        elif (after == size or not (parts or new)) and all(_in_place(piece.frame) for piece in here):
            base = base if parts else (0, after)
            parts += [_shifted(piece, 0, after) for piece in here]
        else:
            return None
        size = after
    return _joined(parts, *base, size) if size == layers[-1].chunks.size_bytes else None


def _steps(piece: Piece) -> list[Step]:
    frame, encoded = piece.frame, piece.decoded.patches.encoded(piece.frame)
    if frame.codec == "chain":
        try:
            return chain.steps_of(memoryview(encoded))
        except ValueError as error:
            raise piece.decoded.patches.bad(frame, str(error), "a chain") from None
    return [
        Step(
            codec=frame.codec,
            width=frame.width,
            read_offset=0,
            read_size=frame.base_size,
            offset=0,
            size=frame.size,
            whole=False,
            encoded=encoded,
        )
    ]


def _joined(parts: Iterable[list[Step] | None], base_offset: int, base_size: int, size: int) -> Chain | None:
    steps: list[Step] = []
    for part in parts:
        if part is None:
            return None
        steps += part
    encoded = chain.join(steps) if len(steps) <= chain.MAX_STEPS else b""
    fits = 0 < len(encoded) <= size + MAX_GROWTH_BYTES and base_size <= MAX_FRAME_BYTES
    return Chain(base_offset, base_size, encoded) if fits else None
