"""Where the elements of a tensor lie in its storage, and the rules of the tables of storages and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from treering_reader.dtypes import SIZES
from treering_reader.faults import FaultError, demand
from treering_reader.schema import Attachment, Manifest, Storage, Tensor

CHUNK = 1 << 20
STORAGE_AT_MOST = 1 << 48
TENSOR_AT_MOST = 1 << 62
AXES_AT_MOST = 64
NAME_AT_MOST = 4096


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor whose elements lie one after the other, sizes of 0 counted as 1."""
    return tuple(prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))


def normal(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides with those that address nothing made normal."""
    if 0 in shape:
        return row_major(shape)
    result: list[int] = []
    spanned = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        result.append(spanned if size == 1 else stride)
        spanned = size * result[-1]
    return tuple(reversed(result))


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their span, each once, in whatever order of the axes."""
    axes = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.strides, strict=True) if size != 1)
    expected = 1
    for stride, size in axes:
        if stride != expected:
            return False
        expected = stride * size
    return True


def is_contiguous(tensor: Tensor) -> bool:
    return tensor.strides == row_major(tensor.shape)


def size_of(tensor: Tensor) -> int:
    """Bytes of all elements, each counted once."""
    return prod(tensor.shape) * SIZES[tensor.dtype]


def end_of(tensor: Tensor) -> int:
    """The first byte of the storage after the last element."""
    if 0 in tensor.shape:
        return tensor.offset
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    return tensor.offset + (last + 1) * SIZES[tensor.dtype]


def gathered(tensor: Tensor, storage: bytes, *, in_order: bool) -> bytes:
    """The elements in row-major order; ``in_order`` says that the storage has them so from its start."""
    if in_order or is_contiguous(tensor):
        return storage[tensor.offset : tensor.offset + size_of(tensor)]
    element = SIZES[tensor.dtype]
    starts = [tensor.offset]
    for size, stride in zip(tensor.shape, tensor.strides, strict=True):
        starts = [start + index * stride * element for start in starts for index in range(size)]
    return b"".join(storage[start : start + element] for start in starts)


def check_chunks(named: str, described: Storage | Attachment) -> None:
    """An attachment or storage states one CRC-32 and one SHA-256 for each chunk of its size."""
    demand(described.size <= STORAGE_AT_MOST, "size-beyond-limit", f"{named} has {described.size} bytes")
    chunks = -(-described.size // CHUNK)
    found = (len(described.crc32), len(described.sha256) / 32)
    demand(found == (chunks, chunks), "chunk-count", f"{named} has {found} digests for {chunks} chunks")


def check_tensors(manifest: Manifest) -> None:
    """The rules of *Tensors* that the table alone can break.

    Raises:
        FaultError: The first rule that does not hold.
    """
    names = [tensor.name for tensor in manifest.tensors]
    demand(len(set(names)) == len(names), "duplicate-name", "two tensors have one name")
    cut = {piece.tensor for piece in manifest.pieces}
    for number, tensor in enumerate(manifest.tensors):
        _check_tensor(tensor, manifest.storages)
        if number not in cut:
            end, size = end_of(tensor), manifest.storages[tensor.storage].size
            demand(end <= size, "storage-bounds", f"{tensor.name[:80]!r} ends at byte {end} of a storage of {size}")


def check_storages(manifest: Manifest) -> None:
    """The rules of *Storages and chunks*: their order, their chunks, and that each holds its tensors and no more."""
    for index, storage in enumerate(manifest.storages):
        check_chunks(f"storage {index}", storage)
    used = storages_used(manifest)
    by_name = sorted(range(len(used)), key=lambda number: manifest.tensors[number].name.encode())
    order = list(dict.fromkeys(storage for number in by_name for storage in used[number]))
    demand(order == list(range(len(manifest.storages))), "storage-order", f"first used in the order {order[:20]}")
    for index, (storage, tensors) in enumerate(zip(manifest.storages, users(manifest), strict=True)):
        if tensors:  # a storage of a piece has none
            _check_span(index, storage, tensors)


def storages_used(manifest: Manifest) -> list[list[int]]:
    """The storages of each tensor: its own, or those of its pieces in their order."""
    used: list[list[int]] = [[] for _ in manifest.tensors]
    for piece in manifest.pieces:
        used[piece.tensor].append(piece.storage)
    return [storages or [tensor.storage] for storages, tensor in zip(used, manifest.tensors, strict=True)]


def users(manifest: Manifest) -> list[list[Tensor]]:
    """The tensors of each storage that lie in it whole, in state order."""
    result: list[list[Tensor]] = [[] for _ in manifest.storages]
    cut = {piece.tensor for piece in manifest.pieces}
    for number, tensor in enumerate(manifest.tensors):
        if number not in cut:
            result[tensor.storage].append(tensor)
    return result


def _check_tensor(tensor: Tensor, storages: Sequence[Storage]) -> None:
    named = f"tensor {tensor.name[:80]!r}"
    demand(len(tensor.name.encode()) <= NAME_AT_MOST, "name-too-long", f"a name of {len(tensor.name)} characters")
    if tensor.dtype not in SIZES:
        raise FaultError("unknown-dtype", f"{named} is {tensor.dtype[:80]!r}")
    element = SIZES[tensor.dtype]
    demand(len(tensor.shape) <= AXES_AT_MOST, "tensor-shape", f"{named} has {len(tensor.shape)} axes")
    spanned = prod(max(size, 1) for size in tensor.shape) * element
    demand(spanned <= TENSOR_AT_MOST, "tensor-shape", f"{named} has {spanned} bytes")
    demand(len(tensor.strides) == len(tensor.shape), "tensor-strides", f"{named} has {len(tensor.strides)} strides")
    expected = normal(tensor.shape, tensor.strides)
    demand(tensor.strides == expected, "tensor-strides", f"{named}: {tensor.strides}, normal is {expected}")
    demand(tensor.offset % element == 0, "tensor-offset", f"{named} begins at {tensor.offset}, elements of {element}")
    demand(tensor.storage < len(storages), "reference", f"{named} lies in storage {tensor.storage}")


def _check_span(index: int, storage: Storage, tensors: Sequence[Tensor]) -> None:
    """A storage ends where its last tensor ends and begins less than the widest element before its first one."""
    if any(0 in tensor.shape for tensor in tensors):
        alone = len(tensors) == 1 and storage.size == tensors[0].offset == 0
        demand(alone, "storage-bounds", f"storage {index} of an empty tensor is shared or holds bytes")
        return
    widest = max(SIZES[tensor.dtype] for tensor in tensors)
    first, end = min(tensor.offset for tensor in tensors), max(map(end_of, tensors))
    demand(first < widest, "storage-bounds", f"storage {index} begins {first} bytes before its first tensor")
    demand(end == storage.size, "storage-bounds", f"storage {index} has {storage.size} bytes, its tensors end at {end}")


def ascending(values: Sequence[str]) -> bool:
    """Whether the texts are sorted by their UTF-8 bytes, none twice."""
    return all(first.encode() < second.encode() for first, second in pairwise(values))
