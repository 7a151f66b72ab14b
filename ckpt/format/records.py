"""The facts a manifest states about tensors and storages, and the arithmetic of strides.

A *storage* is a run of bytes that one or more tensors view; a tensor is a view: dtype, shape, strides and a byte
offset. These values are what is hashed and checked; they know nothing of torch memory or of files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from ckpt.format.dtypes import BY_NAME

MAX_DIMENSIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecord:
    """One tensor as a view of storage number ``storage``.

    ``strides`` count elements, ``offset`` bytes from the storage's start. ``piece_at`` is set where this is not the
    whole tensor but the box of it that begins there (:func:`views_of`). The other fields follow from these:
    ``item_bytes`` is 0 for a dtype outside the table, ``extent_bytes`` reach from the first to the last element.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: int
    piece_at: tuple[int, ...] | None = None

    item_bytes: int = field(init=False, repr=False, compare=False)
    size_bytes: int = field(init=False, repr=False, compare=False)
    extent_bytes: int = field(init=False, repr=False, compare=False)
    is_contiguous: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        row = BY_NAME.get(self.dtype)
        item_bytes = row.size_bytes if row is not None else 0
        size_bytes = prod(self.shape) * item_bytes
        is_contiguous = self.strides == contiguous_strides(self.shape)
        extent_bytes = size_bytes if is_contiguous else extent(self.shape, self.strides) * item_bytes
        object.__setattr__(self, "item_bytes", item_bytes)
        object.__setattr__(self, "size_bytes", size_bytes)
        object.__setattr__(self, "extent_bytes", extent_bytes)
        object.__setattr__(self, "is_contiguous", is_contiguous)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRecord:
    """A box of tensor number ``tensor`` (``offsets`` and ``sizes`` in elements), row-major in a storage of its own."""

    tensor: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    storage: int


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one, both included; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides; an axis of length 0 counts as 1, as torch counts it."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size or 1
    return tuple(strides[::-1])


def normal_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides with every one that addresses nothing set as row-major order would have it.

    The stride of an axis of length 1 is free, and so are all strides of an empty tensor; fixing them gives equal
    content equal records.
    """
    rows = contiguous_strides(shape)
    if 0 in shape or tuple(strides) == rows:
        return rows
    normal: list[int] = []
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        normal.append(stride if size > 1 else step)
        step = normal[-1] * size
    return tuple(reversed(normal))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill their extent without gap or overlap, in any order of the axes."""
    step = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != step:
            return False
        step *= size
    return True


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may lie at one address (exact for strides that nest, as those of views do)."""
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def is_permuted(record: TensorRecord, users: int) -> bool:
    """Whether the tensor's storage is written in row-major order although its strides are others.

    So it is for a tensor alone on its storage (``users`` is 1), dense and not contiguous, for example a
    channels-last weight: readers of safetensors then see it under its name.
    """
    return users == 1 and record.offset == 0 and not record.is_contiguous and is_dense(record.shape, record.strides)


def views_of(tensors: Sequence[TensorRecord], pieces: Sequence[PieceRecord]) -> Sequence[TensorRecord]:
    """What views the storages: tensors, and of each one in pieces its pieces."""
    if not pieces:
        return tensors
    of_tensor: dict[int, list[PieceRecord]] = {}
    for piece in pieces:
        of_tensor.setdefault(piece.tensor, []).append(piece)
    views: list[TensorRecord] = []
    for number, tensor in enumerate(tensors):
        views += [_view(tensor, piece) for piece in of_tensor[number]] if number in of_tensor else [tensor]
    return views


def _view(tensor: TensorRecord, piece: PieceRecord) -> TensorRecord:
    return TensorRecord(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=piece.sizes,
        strides=contiguous_strides(piece.sizes),
        offset=0,
        storage=piece.storage,
        piece_at=piece.offsets,
    )


def users_of(tensors: Sequence[TensorRecord], storages: int) -> tuple[tuple[TensorRecord, ...], ...]:
    """The tensors of each storage, in their order."""
    users: list[list[TensorRecord]] = [[] for _ in range(storages)]
    for tensor in tensors:
        users[tensor.storage].append(tensor)
    return tuple(map(tuple, users))
