"""Which storage goes to which file, and the safetensors header of each file.

``weights-*`` files are valid safetensors with the tensors under their own names; what safetensors cannot name
(views with strides, foreign dtypes, storages with gaps) lies as bytes in ``extra-*`` files outside the index, so
that other loaders never meet an unexpected key. Headers follow from the manifest alone: a reader derives them again
and compares, so a name that was swapped in a header is found.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from ckpt.format.dtypes import BY_NAME
from ckpt.format.entries import named
from ckpt.format.manifest import Manifest
from ckpt.format.names import EXTRA, WEIGHTS, payload_kind
from ckpt.format.records import TensorRecord, users_of

ALIGNMENT_BYTES = 4096
SHARD_BYTES = 4 << 30
MAX_HEADER_BYTES = 90_000_000  # safetensors refuses headers over 100 MB
_quoted = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One payload file to be: its storages in the order in which they lie, and their first bytes.

    ``writer`` says whose it is, where several processes write.
    """

    kind: str
    header: bytes
    storages: tuple[int, ...]
    offsets: tuple[int, ...]
    writer: int = 0


def check_shard_bytes(shard_bytes: object) -> None:
    """Raise ValueError for what no caller can mean."""
    if not isinstance(shard_bytes, Integral) or shard_bytes <= 0:
        raise ValueError(f"shard_bytes is {shard_bytes!r}; expected a number of bytes above 0")


def plan(
    views: Sequence[TensorRecord],
    sizes: Sequence[int],
    *,
    shard_bytes: int = SHARD_BYTES,
    writers: Sequence[int] | None = None,
) -> tuple[Shard, ...]:
    """Distribute storages over files, by size and by header size, in canonical order.

    Args:
        views: All records; of tensors in pieces, the pieces.
        sizes: Bytes of each storage.
        shard_bytes: A file closes before it would grow beyond this; one larger storage still is one file.
        writers: Who writes each storage, so that no file has two; one for all of them unless stated.
    """
    users = users_of(views, len(sizes))
    entries = [named(users[index], size) for index, size in enumerate(sizes)]
    own = writers if writers is not None else [0] * len(sizes)
    members: dict[tuple[str, int], list[int]] = {}
    for index, kept in enumerate(entries):
        members.setdefault((kind_of(kept), own[index]), []).append(index)
    shards = []
    for kind, writer in itertools.product((WEIGHTS, EXTRA), sorted(set(own))):
        for group in _divide(members.get((kind, writer), ()), sizes, users, shard_bytes):
            order = tuple(sorted(group, key=lambda index: place_order(index, sizes[index])))
            header = header_bytes(kind, order, sizes, users, entries)
            offsets = _offsets(order, sizes, len(header))
            shards.append(Shard(kind=kind, header=header, storages=order, offsets=offsets, writer=writer))
    return tuple(shards)


def kind_of(kept: Sequence[TensorRecord]) -> str:
    """Which kind of file a storage belongs in, by the tensors that stand for it."""
    return WEIGHTS if kept else EXTRA


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


def _offsets(order: Sequence[int], sizes: Sequence[int], start: int) -> tuple[int, ...]:
    return tuple(itertools.accumulate((sizes[index] for index in order[:-1]), initial=start))


def place_order(index: int, size: int) -> tuple[int, int]:
    """What the storages of one file are sorted by."""
    return -alignment(size), index


def alignment(size: int) -> int:
    """The largest power of two, up to 4096, that divides a length: what a storage's place is a multiple of."""
    return min(size & -size, ALIGNMENT_BYTES) if size else ALIGNMENT_BYTES


def header_bytes(
    kind: str,
    order: Sequence[int],
    sizes: Sequence[int],
    users: Sequence[Sequence[TensorRecord]],
    entries: Sequence[Sequence[TensorRecord]],
) -> bytes:
    """Length and JSON of a safetensors header, padded with spaces to a multiple of 4096 bytes.

    Args:
        kind: ``WEIGHTS`` or ``EXTRA``.
        order: The storages of the file, as they lie in it.
        sizes, users, entries: Of every storage: its bytes, its tensors, and those that stand for it.
    """
    rows: list[str] = []
    aliases: dict[str, str] = {"format": "pt"}
    position = 0
    for index in order:
        if kind == EXTRA:
            rows.append(_row(f"storage-{index:06d}", "U8", (sizes[index],), position, sizes[index]))
        else:
            for tensor in entries[index]:
                code = BY_NAME[tensor.dtype].safetensors
                rows.append(_row(tensor.name, code, tensor.shape, position + tensor.offset, tensor.size_bytes))
            if len(users[index]) > 1:
                aliases |= _aliases(entries[index], users[index])
        position += sizes[index]
    first = '"__metadata__":' + json.dumps(aliases, ensure_ascii=False, separators=(",", ":"))
    text = f"{{{','.join([first, *rows])}}}".encode()
    padded = -(-(8 + len(text)) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES - 8
    return padded.to_bytes(8, "little") + text.ljust(padded)


def _row(name: str, code: str | None, shape: Sequence[int], start: int, size: int) -> str:
    """One entry, as a JSON encoder would write it: there may be a hundred thousand of them."""
    sizes = ",".join(map(str, shape))
    return f'{_quoted(name)}:{{"dtype":"{code}","shape":[{sizes}],"data_offsets":[{start},{start + size}]}}'


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
            index_bytes(manifest)
            if kind is None
            else header_bytes(kind, order, sizes, manifest.users, manifest.entries)
        )
    return headers


def index_bytes(manifest: Manifest) -> bytes:
    """``model.safetensors.index.json``: which file holds which named tensor."""
    places: dict[str, str] = {}
    total = 0
    for index, kept in enumerate(manifest.entries):
        if kept:
            total += manifest.storages[index].size_bytes
            file = manifest.files[manifest.placements[index].file].name
            for tensor in kept:
                places[tensor.name] = file
    rows = ",\n".join(f"  {_quoted(name)}: {_quoted(places[name])}" for name in sorted(places))
    return f'{{\n "metadata": {{\n  "total_size": {total}\n }},\n "weight_map": {{\n{rows}\n }}\n}}\n'.encode()
