"""Where in a base the bytes of a target lie: rows that were inserted, removed or put in another order.

A *unit* is a row of the tensor, or a few short ones. Of each unit 16 elements are looked at, of floats only sign and
exponent, which training hardly ever changes: so a row that moved is found although it was trained, too. Units whose 16
elements are met once in the base and once in the target are sure of their place; of what lies between two of them the
beginning follows the one before it and the end the one after it, as long as their 16 elements agree. First and
last of all are the ends of both sides, so that a table that grew is found even where training changed all of it.

What is found only guides a writer: a wrong guess makes a delta larger, never wrong. Time is that of reading both sides
a few times; memory is bounded whatever the sizes.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ckpt.deltas.codecs.integers import Unsigned, elements
from ckpt.deltas.codecs.moved import Runs, windows
from ckpt.deltas.sides import Bytes
from ckpt.disk.folder import forget
from ckpt.format.digests import Chunks, chunk_range
from ckpt.format.records import TensorRecord

MIN_UNIT_BYTES = 64
FEW_ANCHORS = 1 << 18  # units of the base that are remembered; of a larger base every so manieth
MAX_ANCHORS = 5 << 18  # where so few do not tell: all that is done with them takes 140 MiB
MAX_STEPS = 1 << 20  # units between two anchors; where there are more, several count as one
_FOLLOWING = 4  # of the few, so many that follow each other tell what lies between them
_LOOKED_AT = 16  # elements of a unit
_AGREE = 5  # of which so many must be alike: of floats that have nothing to do with each other 2 are
_MOST = 12  # of which so many are alike where a unit is at its place
_SURE_UNITS = 4  # that follow each other in both are no chance
_BLOCK_BYTES = 4 << 20
_BATCH_UNITS = 1 << 16
_FACTORS = np.array([pow(0x9E3779B97F4A7C15, power, 1 << 64) for power in range(1, _LOOKED_AT + 1)], np.uint64)
_PARTS = 64  # of a chunk, that are looked at to tell whether it may have moved
_SUSPECT = 32  # one of so many that is unlike what lay there

Numbers = NDArray[np.int64]


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
            return _moves(*np.array([[0], [len(target)], [0]]), base_size=len(base))
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
        starts = np.arange(start, end - part + 1, part)
        agreeing = _agreeing(base, target, starts, np.zeros_like(starts), by._replace(unit=part))
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
    phase = first_shift % by.unit
    found, followers = _anchored(base, target, by, phase, FEW_ANCHORS)
    if followers < _FOLLOWING and len(base) > FEW_ANCHORS * by.unit:
        found, _ = _anchored(base, target, by, phase, MAX_ANCHORS)
    found = _not_by_chance(found, {first_shift, last_shift}, base, target, by)
    pieces = [found, *_between(base, target, found, first_shift, last_shift, by)]
    return _moves(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)), base_size=len(base))


def _moves(starts: Numbers, ends: Numbers, shifts: Numbers, *, base_size: int) -> Moves:
    """Runs, in any order, inside the base; those that follow each other with one shift as one."""
    starts, ends = np.maximum(starts, -shifts), np.minimum(ends, base_size - shifts)
    some = np.flatnonzero(ends > starts)
    some = some[np.argsort(starts[some])]
    starts, ends, shifts = starts[some], ends[some], shifts[some]
    follows = (starts[1:] == ends[:-1]) & (shifts[1:] == shifts[:-1])
    firsts = np.flatnonzero(np.append(True, ~follows)[: len(some)])
    return Moves(starts[firsts], ends[np.append(firsts, len(some))[1:] - 1], shifts[firsts])


# --- units that are sure of their place ------------------------------------------------------------------------------


def _anchored(base: Bytes, target: Bytes, by: Grain, phase: int, most: int) -> tuple[Moves, float]:
    """Units that are sure of their place, as runs; and how many such units a run has of those that were remembered."""
    here, there = _anchors(base, target, by, phase, most)
    found = _of_one_shift(here, there - here, by.unit)
    return found, len(here) / max(len(found.starts), 1)


def _anchors(base: Bytes, target: Bytes, by: Grain, phase: int, most: int) -> tuple[Numbers, Numbers]:
    """First bytes of units that are met once in the base and once in the target: in the target, in the base."""
    every = max(-(-(len(base) // by.unit) // most), 1)
    prints = np.concatenate([some[::every] for _, some in _prints(base, phase, by, every)] or [np.empty(0, np.uint64)])
    order = np.argsort(prints, kind="stable")
    kept = prints[order]
    del prints
    alone = np.concatenate([[True], kept[1:] != kept[:-1], [True]])
    alone = alone[1:] & alone[:-1] if len(kept) else np.empty(0, bool)
    kept, there = kept[alone], phase + order[alone] * (every * by.unit)
    del order
    here, hits = np.zeros(len(kept), np.int64), np.zeros(len(kept), np.int64)
    for start, found in _prints(target, 0, by, 1) if len(kept) else ():
        at = np.minimum(np.searchsorted(kept, found), len(kept) - 1)
        known = np.flatnonzero(kept[at] == found)
        here[at[known]] = start + known * by.unit
        np.add.at(hits, at[known], 1)
    here, there = here[hits == 1], there[hits == 1]
    del kept, hits
    order = np.argsort(here)
    return here[order], there[order]


def _prints(view: Bytes, start: int, by: Grain, every: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Numbers that tell units apart, for a block of units (a multiple of ``every``) at a time, and where it begins."""
    step = max(_BLOCK_BYTES // (by.unit * every), 1) * every
    for first in range(start, len(view) - by.unit + 1, step * by.unit):
        block = view[first : first + min(step, (len(view) - first) // by.unit) * by.unit]
        looked_at = _spread(elements(block, by.width).reshape(-1, by.unit // by.width))
        looked_at = looked_at >> looked_at.dtype.type(by.ignored_bits)
        yield first, (looked_at * _FACTORS[: looked_at.shape[1]]).sum(axis=1, dtype=np.uint64)
        forget(block)


def _spread(units: Unsigned) -> Unsigned:
    """Of units, shape (units, elements), the elements that are looked at, shape (units, 16 or fewer)."""
    step = max(units.shape[1] // _LOOKED_AT, 1)
    return units[:, : step * _LOOKED_AT : step]


def _of_one_shift(here: Numbers, shifts: Numbers, unit: int) -> Moves:
    """Anchors that follow each other with the same shift, as one run, with what lies between them."""
    firsts = np.flatnonzero(np.diff(shifts, prepend=shifts[:1] - 1))
    lasts = np.append(firsts, len(here))[1:] - 1
    return Moves(here[firsts], here[lasts] + unit, shifts[firsts])


def _not_by_chance(found: Moves, shifts: set[int], base: Bytes, target: Bytes, by: Grain) -> Moves:
    """Without short runs that would lie as well where the ends of both sides put them: units are too alike there."""
    good = np.ones(len(found.starts), bool)
    short = np.flatnonzero((found.ends - found.starts < _SURE_UNITS * by.unit) & ~np.isin(found.shifts, [*shifts]))
    for first in range(0, len(short), _BATCH_UNITS):
        some = short[first : first + _BATCH_UNITS]
        for shift in shifts:
            good[some] &= _agreeing(base, target, found.starts[some], np.full(len(some), shift), by) < _MOST
    return Moves(*(column[good] for column in found))


# --- what lies between ----------------------------------------------------------------------------------------------


def _between(base: Bytes, target: Bytes, found: Moves, first_shift: int, last_shift: int, by: Grain) -> Iterator[Moves]:
    """Of each gap between two runs, or a run and an end, what follows the one before it and what the one after it.

    It is cut where most units agree; those between two cuts are new.
    """
    starts, ends = np.append(0, found.ends), np.append(found.starts, len(target))
    before, after = np.append(first_shift, found.shifts), np.append(found.shifts, last_shift)
    same = before == after
    yield Moves(starts[same], ends[same], before[same])
    some = np.flatnonzero(~same & (ends > starts))
    starts, ends, before, after = starts[some], ends[some], before[some], after[some]
    units = by.unit * np.maximum(-(-(ends - starts) // (by.unit * MAX_STEPS)), 1)
    counts = (ends - starts) // units
    for part in _batches(counts):
        own, cut = _cuts(base, target, starts[part], counts[part], (before[part], after[part]),
                         by._replace(unit=int(units[part][0])))  # fmt: skip
        yield Moves(starts[part], starts[part] + own * units[part], before[part])
        yield Moves(starts[part] + cut * units[part], ends[part], after[part])


def _batches(counts: Numbers) -> Iterator[slice]:
    """Gaps side by side with so many units together, or one that has more."""
    sums = np.cumsum(counts)
    first = 0
    while first < len(counts):
        end = np.searchsorted(sums, sums[first] - counts[first] + _BATCH_UNITS, "right")
        last = max(int(end), first + 1)
        yield slice(first, last)
        first = last


def _cuts(
    base: Bytes, target: Bytes, starts: Numbers, counts: Numbers, shifts: tuple[Numbers, Numbers], by: Grain
) -> tuple[Numbers, Numbers]:
    """Of gaps of so many units: how many are as the run before, and from which one on they are as the run after."""
    firsts = np.cumsum(counts) - counts
    alike = np.empty((2, counts.sum()), np.int8)
    for begin in range(0, alike.shape[1], _BATCH_UNITS):
        unit = np.arange(begin, min(begin + _BATCH_UNITS, alike.shape[1]))
        gap = np.searchsorted(firsts, unit, "right") - 1
        places = starts[gap] + (unit - firsts[gap]) * by.unit
        for side, shift in enumerate(shifts):
            alike[side, unit] = _agreeing(base, target, places, shift[gap], by) - _AGREE
    owns, cuts = np.zeros_like(counts), np.zeros_like(counts)
    for count in np.unique(counts).tolist():
        some = np.flatnonzero(counts == count)
        first, last = alike[:, firsts[some, None] + np.arange(count)]
        ahead, behind = np.zeros((2, len(some), count + 1), np.int32)
        np.cumsum(first, axis=1, out=ahead[:, 1:])
        np.cumsum(last[:, ::-1], axis=1, out=behind[:, -2::-1])
        most = np.maximum.accumulate(ahead, axis=1)
        cuts[some] = np.argmax(most + behind, axis=1)
        owns[some] = np.argmax(ahead == most[np.arange(len(some)), cuts[some], None], axis=1)
    return owns, cuts


def _agreeing(base: Bytes, target: Bytes, starts: Numbers, shifts: Numbers, by: Grain) -> Numbers:
    """Of units of the target how many of 16 elements the base has, further by their shifts; 0 where it has none."""
    result = np.zeros(len(starts), np.int64)
    inside = np.flatnonzero((starts + shifts >= 0) & (starts + shifts + by.unit <= len(base)))
    alike = _looked_at_in(target, starts[inside], by) == _looked_at_in(base, starts[inside] + shifts[inside], by)
    result[inside] = alike.sum(axis=1) * _LOOKED_AT // alike.shape[1]
    return result


def _looked_at_in(view: Bytes, places: Numbers, by: Grain) -> Unsigned:
    """What is looked at of units that begin at some places, shape (units, 16 or fewer)."""
    size = by.unit // by.width
    found = np.zeros((len(places), min(size, _LOOKED_AT)), f"<u{by.width}")
    for part, begin, which in windows(view, places, np.full(len(places), by.unit)):
        units = _spread(sliding_window_view(elements(part[: len(part) // by.width * by.width], by.width), size))
        found[which] = units[(places[which] - begin) // by.width] >> found.dtype.type(by.ignored_bits)
    return found
