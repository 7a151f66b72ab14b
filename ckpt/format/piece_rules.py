"""The rules of tensors that lie in pieces: they tile it exactly, without a gap or an overlap, each in its own storage.

Whether boxes tile a tensor is decided by their corners. Each box gives each of its corners a sign, that of the parity
of its upper sides; boxes whose signed corners add up to those of the whole tensor cover each element exactly once, and
no others do. So the work grows with the number of pieces, not with its square, and no element is looked at.
"""

import itertools
from collections.abc import Sequence
from math import prod

from ckpt.errors import FormatError
from ckpt.format.boxes import Box, whole
from ckpt.format.manifest import Manifest
from ckpt.format.records import PieceRecord, TensorRecord, contiguous_strides

MAX_PIECES = 1 << 14  # of one tensor: more writers than any run has had; what is read is laid beside each of them
MAX_CUT_AXES = 4  # a box has 2 to the power of these corners to be counted; meshes have two or three


def check_pieces(manifest: Manifest) -> None:
    """Every rule of pieces, but for the sizes of their storages.

    Raises:
        FormatError: with the path to the first fault.
    """
    order = [(piece.tensor, piece.offsets) for piece in manifest.pieces]
    if any(first >= second for first, second in itertools.pairwise(order)):
        raise FormatError("manifest.pieces", "pieces out of order or twice", "each once, sorted by tensor and offsets")
    owners: dict[int, tuple[PieceRecord, ...]] = {}
    for number, group in itertools.groupby(manifest.pieces, key=lambda piece: piece.tensor):
        if number >= len(manifest.tensors):
            raise FormatError("manifest.pieces", f"tensor {number}", f"less than {len(manifest.tensors)}")
        pieces = tuple(group)
        _check_tensor(manifest, manifest.tensors[number], pieces)
        _check_sharing(manifest, pieces, owners)
    in_pieces = {piece.tensor for piece in manifest.pieces}
    for number, tensor in enumerate(manifest.tensors):
        if tensor.storage in owners and number not in in_pieces:
            raise FormatError(_where(tensor), "a view of another tensor's piece", "a storage of its own")


def _check_tensor(manifest: Manifest, tensor: TensorRecord, pieces: tuple[PieceRecord, ...]) -> None:
    if not 2 <= len(pieces) <= MAX_PIECES:
        raise FormatError(_where(tensor), f"{len(pieces)} pieces", f"2 … {MAX_PIECES}, or the tensor whole")
    plain = tensor.strides == contiguous_strides(tensor.shape) and tensor.offset == 0
    if not plain or tensor.storage != pieces[0].storage:
        raise FormatError(_where(tensor), "strides, an offset or another storage", "rows from the first piece's start")
    if any(piece.storage >= len(manifest.storages) for piece in pieces):
        raise FormatError(_where(tensor), "a piece beyond the storages", f"less than {len(manifest.storages)}")
    if len({piece.storage for piece in pieces}) != len(pieces):
        raise FormatError(_where(tensor), "two pieces in one storage", "one storage for each piece")
    fault = untiled(tensor.shape, [_box(piece) for piece in pieces])
    if fault is not None:
        raise FormatError(_where(tensor), fault, "pieces that tile it, each element once")


def _check_sharing(
    manifest: Manifest, pieces: tuple[PieceRecord, ...], owners: dict[int, tuple[PieceRecord, ...]]
) -> None:
    """Tensors share the storages of pieces only when they are tied: equal in dtype, shape and every piece."""
    mine = manifest.tensors[pieces[0].tensor]
    found = (owners.setdefault(piece.storage, pieces) for piece in pieces)
    for others in {others[0].tensor: others for others in found if others is not pieces}.values():
        theirs = manifest.tensors[others[0].tensor]
        tied = [(_box(piece), piece.storage) for piece in pieces] == [(_box(piece), piece.storage) for piece in others]
        if not tied or (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
            raise FormatError(_where(mine), f"a piece of '{theirs.name[:80]}'", "all of its pieces, or none")


def _box(piece: PieceRecord) -> Box:
    return Box(piece.offsets, piece.sizes)


def untiled(shape: Sequence[int], boxes: Sequence[Box]) -> str | None:
    """What keeps boxes from covering each element of a tensor exactly once; None when they do.

    Args:
        shape: Of the tensor.
        boxes: With as many offsets as sizes.
    """
    outer = whole(shape)
    for box in boxes:
        if len(box.sizes) != len(shape) or outer.meet(box) != box:
            return f"a box at {box.offsets} of sizes {box.sizes}, empty or not inside {tuple(shape)}"
    fault = too_fine(shape, boxes)
    if fault is not None:
        return fault
    cut = _cut_axes(shape, boxes)
    corners: dict[tuple[int, ...], int] = {}
    for box, sign in ((outer, -1), *((box, 1) for box in boxes)):
        _count_corners(corners, [(box.offsets[axis], box.ends[axis]) for axis in cut], sign)
    if corners:
        return f"a gap or an overlap at element {_first(corners, cut, len(shape))}"
    return None


def too_fine(shape: Sequence[int], boxes: Sequence[Box]) -> str | None:
    """What boxes are too many of, even if they tile the tensor; None when they are not."""
    if len(boxes) > MAX_PIECES:
        return f"{len(boxes)} pieces, of which a tensor has at most {MAX_PIECES}"
    axes = len(_cut_axes(shape, boxes))
    return f"cuts along {axes} axes, of which at most {MAX_CUT_AXES} are read" if axes > MAX_CUT_AXES else None


def _cut_axes(shape: Sequence[int], boxes: Sequence[Box]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if any(box.sizes[axis : axis + 1] != (size,) for box in boxes)]


def _count_corners(corners: dict[tuple[int, ...], int], sides: Sequence[tuple[int, int]], sign: int) -> None:
    """Add a box's signed corners to those counted; what comes to nothing is forgotten."""
    for corner in itertools.product(*(((start, 1), (end, -1)) for start, end in sides)):
        place = tuple(coordinate for coordinate, _ in corner)
        total = corners.get(place, 0) + sign * prod(factor for _, factor in corner)
        if total:
            corners[place] = total
        else:
            del corners[place]


def _first(corners: dict[tuple[int, ...], int], cut: Sequence[int], axes: int) -> tuple[int, ...]:
    place = dict(zip(cut, min(corners), strict=True))
    return tuple(place.get(axis, 0) for axis in range(axes))


def _where(tensor: TensorRecord) -> str:
    return f"manifest.tensors['{tensor.name[:80]}']"
