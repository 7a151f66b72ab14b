"""Absolute values in their places: what apply and undo write, each as often as they like.

A write has the old and the new value of every element that it names, so that it can be done, done again and undone from
any state in between. It is *sparse* (positions, old, new) or *dense* (a run, old and new), whichever is smaller.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ckpt.deltas.codecs.integers import Unsigned, elements
from ckpt.deltas.live.memory import LiveStorage

_POSITION_BYTES = {"cpu": 4, "cuda": 8}
# Changes written by one call: on the host few enough that all cores find work, on a device all that a storage has.
_CHANGES_PER_CALL = {"cpu": 1 << 18, "cuda": 1 << 62}
_MOST_ELEMENTS = (1 << 31) - 1  # that positions of 4 bytes tell apart
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What differs in a run of a storage.

    ``start`` is the run's first element in memory, ``places`` which of its elements change, counted from there, None
    for all of them; ``old`` and ``new`` their values as unsigned integers.
    """

    start: int
    places: Places | None
    old: Unsigned
    new: Unsigned

    @property
    def end(self) -> int:
        """The first element after the last one that changes."""
        return self.start + (len(self.old) if self.places is None else int(self.places[-1]) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Values for elements of one storage, on its device.

    ``part`` are its elements from ``start`` on, as integers; ``positions`` count from there, int32 or int64, None for
    all of ``part``; ``old`` and ``new`` are as many values of its dtype.
    """

    storage: int
    start: int
    part: Tensor
    positions: Tensor | None
    old: Tensor
    new: Tensor

    @property
    def size_bytes(self) -> int:
        """What it keeps beside the memory it writes to."""
        return sum(each.nbytes for each in (self.positions, self.old, self.new) if each is not None)

    def put(self, values: Tensor) -> None:
        """Write ``old`` or ``new``; on a device it is done when its stream is."""
        if self.positions is None:
            self.part.copy_(values)
        elif self.part.is_cuda:
            self.part.index_copy_(0, self.positions, values)
        else:  # on one core a third faster than index_copy_
            self.part.scatter_(0, self.positions, values)

    def places(self) -> Places:
        """The elements of the storage's memory that it writes, in its order."""
        if self.positions is None:
            return np.arange(self.start, self.start + self.part.numel())
        return self.positions.cpu().numpy().astype(np.int64) + self.start


def change_between(storage: LiveStorage, start: int, old: memoryview, new: memoryview) -> Change | None:
    """What turns some bytes of a storage, as a checkpoint holds them, into others; None where they are the same.

    Args:
        storage: Whose.
        start: The first byte, on a chunk's boundary.
        old, new: Equally many bytes.

    Raises:
        ValueError: bytes change that no tensor covers.
    """
    before, after = elements(old, storage.width), elements(new, storage.width)
    places = np.flatnonzero(before != after)
    if not len(places):
        return None
    first = start // storage.width
    kept_bytes = _POSITION_BYTES[storage.memory.device.type] + 2 * storage.width
    if storage.is_plain and len(places) * kept_bytes >= 2 * len(old):
        return Change(first, None, before, after)
    before, after = before[places], after[places]
    if storage.is_plain:
        return Change(first, places, before, after)
    places += first
    if storage.is_permuted:
        places = storage.in_memory(places)
        order = np.argsort(places)
        places, before, after = places[order], before[order], after[order]
    if not storage.covers(places):
        raise ValueError("bytes change that no tensor covers")
    return Change(0, places, before, after)


def writes_of(index: int, storage: LiveStorage, changes: Iterable[Change]) -> Iterator[Write]:
    """The writes of one storage; sparse changes that follow each other are put together."""
    at_most = _CHANGES_PER_CALL[storage.memory.device.type]
    waiting: list[Change] = []
    for change in changes:
        if waiting and not _fits(waiting, change, at_most):
            yield _write(index, storage, waiting)
            waiting = []
        waiting.append(change)
    if waiting:
        yield _write(index, storage, waiting)


def _fits(waiting: Sequence[Change], change: Change, at_most: int) -> bool:
    if waiting[0].places is None or change.places is None or change.start < waiting[-1].end:
        return False
    return sum(len(each.old) for each in (*waiting, change)) <= at_most


def _write(index: int, storage: LiveStorage, changes: Sequence[Change]) -> Write:
    first, end = changes[0].start, changes[-1].end
    positions = None
    if changes[0].places is not None:
        together = np.concatenate([each.places + (each.start - first) for each in changes if each.places is not None])
        wide = storage.memory.is_cuda or end - first > _MOST_ELEMENTS
        positions = torch.from_numpy(together.astype(np.int64 if wide else np.int32)).to(storage.memory.device)
    part = storage.integers(first * storage.width, end * storage.width)
    old, new = (
        torch.from_numpy(np.concatenate(values)).view(part.dtype).to(part.device)
        for values in ([each.old for each in changes], [each.new for each in changes])
    )
    return Write(storage=index, start=first, part=part, positions=positions, old=old, new=new)
