"""Which storage goes to which file, and the safetensors header of each file.

``weights-*`` files are valid safetensors with the tensors under their own names; what safetensors cannot name
(views with strides, foreign dtypes, storages with gaps) lies as bytes in ``extra-*`` files outside the index, so
that other loaders never meet an unexpected key. Headers follow from the manifest alone: a reader derives them again
and compares, so a name that was swapped in a header is found.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckpt.dtypes import BY_NAME
from ckpt.manifest import Manifest
from ckpt.names import EXTRA, WEIGHTS, payload_kind
from ckpt.records import TensorRecord, is_permuted, users_of

ALIGNMENT_BYTES = 4096
SHARD_BYTES = 4 << 30
MAX_HEADER_BYTES = 90_000_000  # safetensors refuses headers over 100 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One payload file to be: its storages in the order in which they lie, and their first bytes."""

    kind: str
    header: bytes
    storages: tuple[int, ...]
    offsets: tuple[int, ...]


def plan(tensors: Sequence[TensorRecord], sizes: Sequence[int], *, shard_bytes: int = SHARD_BYTES) -> tuple[Shard, ...]:
    """Distribute storages over files, by size and by header size, in canonical order.

    Args:
        tensors: All records.
        sizes: Bytes of each storage.
        shard_bytes: A file closes before it would grow beyond this; one larger storage still is one file.
    """
    users = users_of(tensors, len(sizes))
    shards = []
    for kind in (WEIGHTS, EXTRA):
        members = [index for index, size in enumerate(sizes) if kind_of(users[index], size) == kind]
        shards += [_shard(kind, group, sizes, users) for group in _divide(members, sizes, users, shard_bytes)]
    return tuple(shards)


def _divide(
    members: Sequence[int], sizes: Sequence[int], users: Sequence[Sequence[TensorRecord]], shard_bytes: int
) -> list[list[int]]:
    groups: list[list[int]] = []
    payload = header = 0
    for index in members:
        entry = sum(2 * len(tensor.name.encode()) + 120 + 24 * len(tensor.shape) for tensor in users[index])
        if not groups or payload + sizes[index] > shard_bytes or header + entry > MAX_HEADER_BYTES:
            groups.append([])
            payload = header = 0
        groups[-1].append(index)
        payload += sizes[index]
        header += entry
    return groups


def _shard(kind: str, group: Sequence[int], sizes: Sequence[int], users: Sequence[Sequence[TensorRecord]]) -> Shard:
    order = sorted(group, key=lambda index: place_order(index, sizes[index]))
    header = header_bytes(kind, order, sizes, users)
    offsets, position = [], len(header)
    for index in order:
        offsets.append(position)
        position += sizes[index]
    return Shard(kind=kind, header=header, storages=tuple(order), offsets=tuple(offsets))


def place_order(index: int, size: int) -> tuple[int, int]:
    """What the storages of one file are sorted by."""
    return -alignment(size), index


def alignment(size: int) -> int:
    """The largest power of two, up to 4096, that divides a length: what a storage's place is a multiple of."""
    return min(size & -size, ALIGNMENT_BYTES) if size else ALIGNMENT_BYTES


def kind_of(users: Sequence[TensorRecord], size: int) -> str:
    """Which kind of file a storage belongs in."""
    return WEIGHTS if named(users, size) else EXTRA


def named(users: Sequence[TensorRecord], size: int) -> list[TensorRecord]:
    """The tensors that stand for a storage in a safetensors header, by offset; none when they cannot tile it.

    In state order each contiguous tensor of a dtype that safetensors names is taken unless it overlaps one taken
    before; where these leave a gap, one tensor that covers the whole storage is taken instead.
    """
    able = [tensor for tensor in users if _is_able(tensor, len(users))]
    taken: list[TensorRecord] = []
    starts: list[int] = []
    for tensor in able:
        place = bisect_left(starts, tensor.offset)
        after_one = place == 0 or starts[place - 1] + taken[place - 1].size_bytes <= tensor.offset
        if after_one and (place == len(starts) or tensor.offset + tensor.size_bytes <= starts[place]):
            starts.insert(place, tensor.offset)
            taken.insert(place, tensor)
    if taken and sum(tensor.size_bytes for tensor in taken) == size:
        return taken
    return [tensor for tensor in able if tensor.size_bytes == size][:1]


def _is_able(tensor: TensorRecord, users: int) -> bool:
    lies_in_order = tensor.is_contiguous or is_permuted(tensor, users)
    return lies_in_order and BY_NAME[tensor.dtype].safetensors is not None and tensor.name != "__metadata__"


def header_bytes(
    kind: str, order: Sequence[int], sizes: Sequence[int], users: Sequence[Sequence[TensorRecord]]
) -> bytes:
    """Length and JSON of a safetensors header, padded with spaces to a multiple of 4096 bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for index in order:
        size = sizes[index]
        if kind == EXTRA:
            entries[f"storage-{index:06d}"] = _entry("U8", [size], position, size)
        else:
            kept = named(users[index], size)
            for tensor in kept:
                code = BY_NAME[tensor.dtype].safetensors
                entries[tensor.name] = _entry(code, tensor.shape, position + tensor.offset, tensor.size_bytes)
            entries["__metadata__"] |= _aliases(kept, users[index])  # type: ignore[operator]
        position += size
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    padded = -(-(8 + len(text)) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES - 8
    return padded.to_bytes(8, "little") + text.ljust(padded)


def _entry(code: str | None, shape: Sequence[int], start: int, size: int) -> dict[str, object]:
    return {"dtype": code, "shape": list(shape), "data_offsets": [start, start + size]}


def _aliases(kept: Sequence[TensorRecord], users: Sequence[TensorRecord]) -> dict[str, str]:
    """Tied tensors: name → the name that stands for it."""
    stands = {(tensor.dtype, tensor.shape, tensor.strides, tensor.offset): tensor.name for tensor in kept}
    names = ((tensor, stands.get((tensor.dtype, tensor.shape, tensor.strides, tensor.offset))) for tensor in users)
    return {tensor.name: kept_name for tensor, kept_name in names if kept_name not in (None, tensor.name)}


def headers_of(manifest: Manifest) -> dict[str, bytes]:
    """The header that each file must have, derived from the manifest: file name → bytes."""
    sizes = [storage.size_bytes for storage in manifest.storages]
    members: list[list[int]] = [[] for _ in manifest.files]
    for index, place in enumerate(manifest.placements):
        members[place.file].append(index)
    headers = {}
    for record, storages in zip(manifest.files, members, strict=True):
        kind = payload_kind(record.name)
        order = sorted(storages, key=lambda index: place_order(index, sizes[index]))
        headers[record.name] = (
            index_bytes(manifest) if kind is None else header_bytes(kind, order, sizes, manifest.users)
        )
    return headers


def index_bytes(manifest: Manifest) -> bytes:
    """``model.safetensors.index.json``: which file holds which named tensor."""
    weight_map: dict[str, str] = {}
    total = 0
    for index, place in enumerate(manifest.placements):
        name = manifest.files[place.file].name
        if payload_kind(name) == WEIGHTS:
            total += manifest.storages[index].size_bytes
            weight_map |= {
                tensor.name: name for tensor in named(manifest.users[index], manifest.storages[index].size_bytes)
            }
    return _index(weight_map, total)


def _index(weight_map: Mapping[str, str], total: int) -> bytes:
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, ensure_ascii=False, indent=1).encode("utf-8") + b"\n"
