"""Where in a base the bytes of a target lie: rows that were inserted, removed or put in another order.

A *unit* is a row of the tensor, or a few short ones. Of each unit 16 elements are looked at, of floats only sign and
exponent, which training hardly ever changes: so a row that moved is found although it was trained, too. Units whose 16
elements are met once in the base and once in the target are sure of their place; of what lies between two of them the
beginning follows the one before it and the end the one after it, as long as their 16 elements agree. First and
last of all are the ends of both sides, so that a table that grew is found even where training changed all of it.

What is found only guides a writer: a wrong guess makes a delta larger, never wrong. Time is that of reading both sides
twice; memory is bounded whatever the sizes.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckpt.deltas.codecs.integers import Unsigned, elements
from ckpt.deltas.codecs.moved import Runs
from ckpt.deltas.sides import Bytes
from ckpt.disk.folder import forget
from ckpt.format.digests import Chunks, chunk_range
from ckpt.format.records import TensorRecord

MIN_UNIT_BYTES = 64
MAX_ANCHORS = 1 << 18  # units of the base that are remembered; of a larger base every so manieth
MAX_STEPS = 1 << 20  # units between two anchors; where there are more, several count as one
_LOOKED_AT = 16  # elements of a unit
_AGREE = 5  # of which so many must be alike: of floats that have nothing to do with each other 2 are
_MOST = 12  # of which so many are alike where a unit is at its place
_SURE_UNITS = 4  # that follow each other in both are no chance
_BLOCK_BYTES = 4 << 20
_FACTORS = np.array([pow(0x9E3779B97F4A7C15, power, 1 << 64) for power in range(1, _LOOKED_AT + 1)], np.uint64)
_PARTS = 64  # of a chunk, that are looked at to tell whether it may have moved
_SUSPECT = 32  # one of so many that is unlike what lay there

Numbers = NDArray[np.int64]
_Piece = tuple[int, int, int]  # first byte and end in the target, and how much further in the base it lies


class Grain(NamedTuple):
    """What a storage is cut into: bytes of a unit, of an element, bits of an element that are not looked at."""

    unit: int
    width: int
    ignored_bits: int


def grain(users: Sequence[TensorRecord], *, width: int, mantissa_bits: int) -> Grain:
    """A unit is the shortest row of the largest tensor that has 64 bytes, or as many short ones as that takes."""
    tensor = max(users, key=lambda each: each.size_bytes)
    steps = sorted({stride * tensor.item_bytes for stride in tensor.strides if stride > 0} | {tensor.item_bytes})
    row = next((step for step in steps if step >= MIN_UNIT_BYTES), steps[-1])
    return Grain(unit=-(-MIN_UNIT_BYTES // row) * row, width=width, ignored_bits=mantissa_bits)


class Moves(NamedTuple):
    """Runs of a target that lie in its base, ascending, without overlap: from ``starts`` to ``ends``, in the base
    ``shifts`` bytes further."""

    starts: Numbers
    ends: Numbers
    shifts: Numbers

    def known_bytes(self) -> int:
        """Of the target, those that lie in the base."""
        return int((self.ends - self.starts).sum())

    def shift_of(self, start: int, end: int) -> int | None:
        """That of a run which has one from end to end."""
        run = int(np.searchsorted(self.ends, start, "right"))
        whole = run < len(self.ends) and self.starts[run] <= start and end <= self.ends[run]
        return int(self.shifts[run]) if whole else None

    def within(self, start: int, end: int) -> Runs:
        """What a run of the target gathers from the base; places count from its start."""
        some = slice(int(np.searchsorted(self.ends, start, "right")), int(np.searchsorted(self.starts, end, "left")))
        first, last = np.maximum(self.starts[some], start), np.minimum(self.ends[some], end)
        return Runs(first - start, last - first, first + self.shifts[some])


def find_moves(
    base: Bytes,
    target: Bytes,
    before: Chunks,
    after: Chunks,
    base_users: Sequence[TensorRecord],
    users: Sequence[TensorRecord],
    *,
    width: int,
    mantissa_bits: int,
) -> Moves:
    """Where the bytes of a storage lie in the one that it comes from; all in place where few differ from that."""
    by = grain(users, width=width, mantissa_bits=mantissa_bits)
    if len(base) == len(target):
        changed = [chunk for chunk in range(after.count) if before.sha256_of(chunk) != after.sha256_of(chunk)]
        if not may_have_moved(base, target, changed, by):
            return _moves([(0, len(target), 0)], len(base))
    named = {(tensor.name, tensor.piece_at): tensor for tensor in base_users}
    both = [(named[key], tensor) for tensor in users if (key := (tensor.name, tensor.piece_at)) in named]
    (first_old, first), (last_old, last) = both[0], both[-1]
    end, end_old = last.offset + last.extent_bytes, last_old.offset + last_old.extent_bytes
    return moves(base, target, by, first_shift=first_old.offset - first.offset, last_shift=end_old - end)


def may_have_moved(base: Bytes, target: Bytes, changed: Sequence[int], by: Grain) -> bool:
    """Whether, of two sides of equal length, more than a few parts of the changed chunks are unlike what lay there."""
    unlike = probed = 0
    for chunk in changed:
        start, end = chunk_range(chunk, len(target))
        part = max((end - start) // _PARTS // MIN_UNIT_BYTES, 1) * MIN_UNIT_BYTES
        agreeing = _agreeing(base, target, start, (end - start) // part, 0, by._replace(unit=part))
        unlike, probed = unlike + int((agreeing < _AGREE).sum()), probed + len(agreeing)
    return unlike * _SUSPECT > probed


def moves(base: Bytes, target: Bytes, by: Grain, *, first_shift: int, last_shift: int) -> Moves:
    """Where the bytes of the target lie in the base.

    Args:
        base, target: Both sides; neither is empty.
        by: What they are cut into.
        first_shift, last_shift: How much further in the base than in the target the beginning lies, and the end: of a
            tensor that has a storage of its own 0 and the difference of their lengths.
    """
    here, there = _anchors(base, target, by, first_shift % by.unit)
    found = _of_one_shift(here, there - here, by.unit)
    found = _not_by_chance(found, {first_shift, last_shift}, base, target, by)
    pieces: list[_Piece] = [(0, 0, first_shift)]
    for piece in (*zip(*(column.tolist() for column in found), strict=True), (len(target), len(target), last_shift)):
        for part in (*_between(base, target, pieces[-1], piece, by), piece):
            _append(pieces, part)
    return _moves(pieces, len(base))


def _append(pieces: list[_Piece], part: _Piece) -> None:
    start, end, shift = pieces[-1]
    if (end, shift) == (part[0], part[2]):
        pieces[-1] = (start, part[1], shift)
    else:
        pieces.append(part)


def _moves(pieces: Sequence[_Piece], base_size: int) -> Moves:
    starts, ends, shifts = np.array(pieces, np.int64).T
    starts, ends = np.maximum(starts, -shifts), np.minimum(ends, base_size - shifts)
    some = ends > starts
    return Moves(starts[some], ends[some], shifts[some])


# --- units that are sure of their place ------------------------------------------------------------------------------


def _anchors(base: Bytes, target: Bytes, by: Grain, phase: int) -> tuple[Numbers, Numbers]:
    """First bytes of units that are met once in the base and once in the target: in the target, in the base."""
    every = max(-(-(len(base) // by.unit) // MAX_ANCHORS), 1)
    prints = np.concatenate([some[::every] for _, some in _prints(base, phase, by, every)] or [np.empty(0, np.uint64)])
    order = np.argsort(prints, kind="stable")
    kept = prints[order]
    alone = np.concatenate([[True], kept[1:] != kept[:-1], [True]])
    alone = alone[1:] & alone[:-1] if len(kept) else np.empty(0, bool)
    kept, there = kept[alone], phase + order[alone] * (every * by.unit)
    here, hits = np.zeros(len(kept), np.int64), np.zeros(len(kept), np.int64)
    for start, found in _prints(target, 0, by, 1) if len(kept) else ():
        at = np.minimum(np.searchsorted(kept, found), len(kept) - 1)
        known = np.flatnonzero(kept[at] == found)
        here[at[known]] = start + known * by.unit
        hits += np.bincount(at[known], minlength=len(kept))
    here, there = here[hits == 1], there[hits == 1]
    order = np.argsort(here)
    return here[order], there[order]


def _prints(view: Bytes, start: int, by: Grain, every: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Numbers that tell units apart, for a block of units (a multiple of ``every``) at a time, and where it begins."""
    step = max(_BLOCK_BYTES // (by.unit * every), 1) * every
    for first in range(start, len(view) - by.unit + 1, step * by.unit):
        block = view[first : first + min(step, (len(view) - first) // by.unit) * by.unit]
        looked_at = _looked_at(block, by)
        yield first, (looked_at * _FACTORS[: looked_at.shape[1]]).sum(axis=1, dtype=np.uint64)
        forget(block)


def _looked_at(block: memoryview, by: Grain) -> Unsigned:
    """Of whole units the elements that are looked at, shape (units, 16 or fewer)."""
    units = elements(block, by.width).reshape(-1, by.unit // by.width)
    step = max(units.shape[1] // _LOOKED_AT, 1)
    return units[:, : step * _LOOKED_AT : step] >> units.dtype.type(by.ignored_bits)


def _of_one_shift(here: Numbers, shifts: Numbers, unit: int) -> Moves:
    """Anchors that follow each other with the same shift, as one run, with what lies between them."""
    firsts = np.flatnonzero(np.diff(shifts, prepend=shifts[:1] - 1))
    lasts = np.append(firsts, len(here))[1:] - 1
    return Moves(here[firsts], here[lasts] + unit, shifts[firsts])


def _not_by_chance(found: Moves, shifts: set[int], base: Bytes, target: Bytes, by: Grain) -> Moves:
    """Without short runs that would lie as well where the ends of both sides put them: units are too alike there."""
    good = np.ones(len(found.starts), bool)
    for run in np.flatnonzero(found.ends - found.starts < _SURE_UNITS * by.unit):
        start, own = int(found.starts[run]), int(found.shifts[run])
        others = set() if own in shifts else shifts
        good[run] = all(_agreeing(base, target, start, 1, shift, by)[0] < _MOST for shift in others)
    return Moves(*(column[good] for column in found))


# --- what lies between ----------------------------------------------------------------------------------------------


def _between(base: Bytes, target: Bytes, before: _Piece, after: _Piece, by: Grain) -> Iterator[_Piece]:
    """The beginning as the piece before, the end as the piece after: cut where most units agree; between, new."""
    start, end = before[1], after[0]
    if before[2] == after[2]:
        yield start, end, before[2]
        return
    unit = by.unit * max(-(-(end - start) // (by.unit * MAX_STEPS)), 1)
    count = (end - start) // unit
    first, last = (
        _agreeing(base, target, start, count, shift, by._replace(unit=unit)) - _AGREE for shift in (before[2], after[2])
    )
    ahead = np.concatenate([[0], np.cumsum(first)])
    behind = np.concatenate([np.cumsum(last[::-1])[::-1], [0]])
    cut = int(np.argmax(np.maximum.accumulate(ahead) + behind))
    own = int(np.argmax(ahead[: cut + 1]))
    yield start, start + own * unit, before[2]
    yield start + cut * unit, end, after[2]


def _agreeing(base: Bytes, target: Bytes, start: int, count: int, shift: int, by: Grain) -> Numbers:
    """For each of ``count`` units of the target from ``start`` on, how many of 16 elements the base has, further by
    ``shift``; 0 where it has none."""
    result = np.zeros(count, np.int64)
    low = min(max(-(-(-shift - start) // by.unit), 0), count)
    high = min(max((len(base) - shift - start) // by.unit, low), count)
    step = max(_BLOCK_BYTES // by.unit, 1)
    for unit in range(low, high, step):
        place, size = start + unit * by.unit, min(step, high - unit) * by.unit
        new, old = target[place : place + size], base[place + shift : place + shift + size]
        alike = _looked_at(new, by) == _looked_at(old, by)
        result[unit : unit + len(alike)] = alike.sum(axis=1) * _LOOKED_AT // alike.shape[1]
        forget(new)
        forget(old)
    return result
