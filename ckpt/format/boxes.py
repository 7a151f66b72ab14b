"""Boxes of tensors: where two of them meet, which chunks lie under one, and how a tensor is cut into small ones.

A box is a range along each axis: offsets and sizes, in elements. Nothing here knows of files or memory.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ckpt.format.digests import CHUNK_BYTES
from ckpt.format.records import contiguous_strides


@dataclass(frozen=True, slots=True)
class Box:
    """``sizes`` elements from ``offsets`` on, axis by axis."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def ends(self) -> tuple[int, ...]:
        """The elements after the last ones."""
        return tuple(start + size for start, size in zip(self.offsets, self.sizes, strict=True))

    def meet(self, other: "Box") -> "Box | None":
        """The elements that both hold; None when there are none."""
        offsets = tuple(map(max, self.offsets, other.offsets))
        sizes = tuple(min(ends) - start for start, *ends in zip(offsets, self.ends, other.ends, strict=True))
        return Box(offsets, sizes) if all(size > 0 for size in sizes) else None

    def within(self, outer: "Box") -> tuple[slice, ...]:
        """An index that takes this box from a tensor that holds ``outer``."""
        starts = (own - start for own, start in zip(self.offsets, outer.offsets, strict=True))
        return tuple(slice(start, start + size) for start, size in zip(starts, self.sizes, strict=True))


def whole(shape: Sequence[int]) -> Box:
    """The box that holds all of a tensor."""
    return Box((0,) * len(shape), tuple(shape))


def chunks_under(part: Box, outer: Box, *, item_bytes: int, shift: int = 0) -> Iterator[range]:
    """The chunks of a storage that hold elements of ``part``, as ranges in ascending order.

    Args:
        part: A box inside ``outer``, not empty.
        outer: What lies in the storage, row-major.
        item_bytes: Of an element.
        shift: Byte of the storage where it begins.
    """
    strides = [stride * item_bytes for stride in contiguous_strides(outer.sizes)]
    starts = [own - start for own, start in zip(part.offsets, outer.offsets, strict=True)]
    first = shift + sum(start * stride for start, stride in zip(starts, strides, strict=True))
    yield from _chunks(first, part.sizes, strides, item_bytes)


def _chunks(first: int, sizes: Sequence[int], strides: Sequence[int], item_bytes: int) -> Iterator[range]:
    reach = item_bytes + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    axis = next((axis for axis, size in enumerate(sizes) if size > 1), None)
    row = reach if axis is None else reach - (sizes[axis] - 1) * strides[axis]
    if axis is None or strides[axis] - row < CHUNK_BYTES:  # no chunk fits between two rows, nor between parts of one
        yield range(first // CHUNK_BYTES, -(-(first + reach) // CHUNK_BYTES))
        return
    for index in range(sizes[axis]):
        yield from _chunks(first + index * strides[axis], sizes[axis + 1 :], strides[axis + 1 :], item_bytes)


def slabs(shape: Sequence[int], *, at_most: int) -> Iterator[Box]:
    """A tensor cut into boxes of at most so many elements, which follow each other in row-major order.

    Args:
        shape: Without a zero.
        at_most: Elements, > 0.
    """
    axis = next((axis for axis in range(len(shape)) if prod(shape[axis + 1 :]) <= at_most), len(shape))
    if axis == len(shape):
        yield whole(shape)
        return
    rows = max(at_most // prod(shape[axis + 1 :]), 1)
    inner = tuple(shape[axis + 1 :])
    for outer in itertools.product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], rows):
            sizes = (*(1 for _ in outer), min(rows, shape[axis] - start), *inner)
            yield Box((*outer, start, *(0 for _ in inner)), sizes)
