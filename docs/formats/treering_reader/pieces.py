"""Tensors that several writers stored in pieces: the rules of *Pieces*, and one whole made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise, product
from math import prod

from treering_reader.dtypes import SIZES
from treering_reader.faults import demand
from treering_reader.layout import row_major
from treering_reader.schema import Manifest, Piece, Tensor

FEWEST, MOST = 2, 16_384
AXES_CUT_AT_MOST = 4


def by_tensor(manifest: Manifest) -> dict[int, list[Piece]]:
    """The pieces of each tensor that has some, by its index."""
    return {number: list(pieces) for number, pieces in groupby(manifest.pieces, key=lambda piece: piece.tensor)}


def check_order(manifest: Manifest) -> None:
    """The pieces are sorted, none twice, and name tensors and storages that are there.

    Raises:
        FaultError: ``not-sorted`` or ``reference``.
    """
    keys = [(piece.tensor, piece.offsets) for piece in manifest.pieces]
    demand(all(first < second for first, second in pairwise(keys)), "not-sorted", "pieces out of order or twice")
    for piece in manifest.pieces:
        known = piece.tensor < len(manifest.tensors) and piece.storage < len(manifest.storages)
        demand(known, "reference", f"a piece of tensor {piece.tensor} in storage {piece.storage}")


def check_pieces(manifest: Manifest) -> None:
    """Each tensor in pieces is tiled by its boxes, and their storages hold them alone.

    Raises:
        FaultError: ``piece-form``, ``piece-tiling``, ``piece-sharing`` or ``storage-bounds``.
    """
    owners: dict[int, int] = {}  # storage → the first tensor that has a piece there
    cut: dict[int, tuple[object, ...]] = {}
    whole = by_tensor(manifest)
    for number, pieces in whole.items():
        tensor = manifest.tensors[number]
        _check_form(tensor, pieces)
        _check_tiling(tensor, pieces)
        boxes = tuple((piece.offsets, piece.sizes, piece.storage) for piece in pieces)
        used = {piece.storage for piece in pieces}
        demand(len(used) == len(pieces), "piece-sharing", f"two pieces of {tensor.name[:80]!r} in one storage")
        cut[number] = (tensor.dtype, tensor.shape, boxes)
        tied = all(cut[owner] == cut[number] for owner in {owners.setdefault(storage, number) for storage in used})
        demand(tied, "piece-sharing", f"{tensor.name[:80]!r} shares some pieces with another tensor")
        for piece in pieces:
            expected, stored = prod(piece.sizes) * SIZES[tensor.dtype], manifest.storages[piece.storage].size
            demand(expected == stored, "storage-bounds", f"a piece of {expected} bytes in a storage of {stored}")
    for number, tensor in enumerate(manifest.tensors):
        alone = number in whole or tensor.storage not in owners
        demand(alone, "piece-sharing", f"{tensor.name[:80]!r} lies in the storage of a piece")


def _check_form(tensor: Tensor, pieces: Sequence[Piece]) -> None:
    named = f"tensor {tensor.name[:80]!r}"
    demand(FEWEST <= len(pieces) <= MOST, "piece-form", f"{named} has {len(pieces)} pieces")
    record = (tensor.strides, tensor.offset, tensor.storage)
    expected = (row_major(tensor.shape), 0, pieces[0].storage)
    demand(record == expected, "piece-form", f"{named}: strides, offset and storage {record}, expected {expected}")
    for piece in pieces:
        whole = len(piece.offsets) == len(piece.sizes) == len(tensor.shape)
        inside = whole and all(
            size > 0 and offset + size <= length
            for offset, size, length in zip(piece.offsets, piece.sizes, tensor.shape, strict=True)
        )
        demand(inside, "piece-form", f"{named}: a box of {piece.sizes} at {piece.offsets}")


def _check_tiling(tensor: Tensor, pieces: Sequence[Piece]) -> None:
    """The signed corners of all boxes together are those of the whole tensor."""
    axes = [axis for axis, size in enumerate(tensor.shape) if any(piece.sizes[axis] != size for piece in pieces)]
    demand(len(axes) <= AXES_CUT_AT_MOST, "piece-form", f"{tensor.name[:80]!r} is cut along {len(axes)} axes")
    found: Counter[tuple[int, ...]] = Counter()
    for piece in pieces:
        for corner, sign in _corners(piece.offsets, piece.sizes, axes):
            found[corner] += sign
    expected = dict(_corners((0,) * len(tensor.shape), tensor.shape, axes))
    tiled = {corner: sign for corner, sign in found.items() if sign} == expected
    demand(tiled, "piece-tiling", f"the pieces of {tensor.name[:80]!r} leave a gap or overlap")


def _corners(
    offsets: Sequence[int], sizes: Sequence[int], axes: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], int]]:
    for uppers in product((0, 1), repeat=len(axes)):
        corner = tuple(offsets[axis] + upper * sizes[axis] for axis, upper in zip(axes, uppers, strict=True))
        yield corner, -1 if sum(uppers) % 2 else 1


def assembled(tensor: Tensor, pieces: Sequence[Piece], storages: Sequence[bytes]) -> bytes:
    """The whole tensor, row-major."""
    element, strides = SIZES[tensor.dtype], row_major(tensor.shape)
    whole = bytearray(prod(tensor.shape) * element)
    for piece in pieces:
        run = piece.sizes[-1] * element
        content = storages[piece.storage]
        rows = product(*(range(offset, offset + size) for offset, size in _leading(piece)))
        for number, row in enumerate(rows):
            first = sum(place * stride for place, stride in zip((*row, piece.offsets[-1]), strides, strict=True))
            whole[first * element : first * element + run] = content[number * run : (number + 1) * run]
    return bytes(whole)


def _leading(piece: Piece) -> Iterator[tuple[int, int]]:
    return zip(piece.offsets[:-1], piece.sizes[:-1], strict=True)
