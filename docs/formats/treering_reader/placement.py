"""Which storage lies where, and the headers that follow from it: the rules of *Payload files* for files of ours."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from math import prod

from treering_reader.dtypes import SAFETENSORS, SIZES
from treering_reader.faults import FaultError, demand
from treering_reader.layout import is_contiguous, is_dense, size_of, users
from treering_reader.schema import Manifest, Tensor

INDEX = "model.safetensors.index.json"
ALIGNMENT = 4096
_FORM = re.compile(r"(weights|extra)-[0-9]{5,}-[0-9a-f]{8}\.safetensors")


def lies_row_major(tensor: Tensor, sharers: int) -> bool:
    """Whether a tensor that is alone on its storage is stored in row-major order although its strides are others."""
    return sharers == 1 and not is_contiguous(tensor) and 0 not in tensor.shape and is_dense(tensor)


def named(tensors: Sequence[Tensor], size: int) -> list[Tensor]:
    """The tensors that have an entry of their own, by offset; none when the storage lies in an ``extra-`` file."""
    able = [
        tensor
        for tensor in tensors
        if tensor.dtype in SAFETENSORS
        and tensor.name != "__metadata__"
        and (is_contiguous(tensor) or lies_row_major(tensor, len(tensors)))
    ]
    taken: list[Tensor] = []
    for tensor in able:
        place = bisect_left(taken, tensor.offset, key=lambda other: other.offset)
        after = place == 0 or taken[place - 1].offset + size_of(taken[place - 1]) <= tensor.offset
        if after and (place == len(taken) or tensor.offset + size_of(tensor) <= taken[place].offset):
            taken.insert(place, tensor)
    if taken and sum(map(size_of, taken)) == size:
        return taken
    return [tensor for tensor in able if size_of(tensor) == size][:1]


def check_placement(manifest: Manifest) -> None:
    """Storages fill each file end to end in their order; each file is of the right kind and holds one at least.

    Raises:
        FaultError: ``file-name``, ``file-table`` or ``placement``.
    """
    for file in manifest.files:
        demand(file.name == INDEX or _FORM.fullmatch(file.name) is not None, "file-name", f"{file.name[:80]!r}")
    names = [file.name for file in manifest.files]
    demand(len(set(names)) == len(names), "file-table", "a file is listed twice")
    indexed = any(name.startswith("weights-") for name in names)
    demand(indexed == (INDEX in names), "file-table", f"weights files: {indexed}, an index: {INDEX in names}")
    check_coverage(manifest, in_order=_order(manifest))
    for index, tensors in enumerate(users(manifest)):
        kind = "weights-" if named(tensors, manifest.storages[index].size) else "extra-"
        name = names[manifest.storages[index].file]
        demand(name.startswith(kind), "placement", f"storage {index} lies in {name}, it belongs in {kind}…")
    holding = {storage.file for storage in manifest.storages}
    for number, file in enumerate(manifest.files):
        used = number in holding
        demand(used != (file.name == INDEX), "file-table", f"{file.name}: storages lie in it: {used}")


def _order(manifest: Manifest) -> list[int]:
    """By the largest power of two that divides the length, descending; a stable sort keeps the canonical order."""
    sizes = [storage.size for storage in manifest.storages]
    powers = [min(size & -size, ALIGNMENT) if size else ALIGNMENT for size in sizes]
    return sorted(range(len(sizes)), key=lambda index: -powers[index])


def check_coverage(manifest: Manifest, *, in_order: Sequence[int]) -> None:
    """Header and storages fill each file: no hole, no overlap, nothing after the last one."""
    reached = [file.header_size for file in manifest.files]
    for index in in_order:
        storage = manifest.storages[index]
        demand(storage.file < len(reached), "reference", f"storage {index} lies in file {storage.file}")
        expected = reached[storage.file]
        demand(storage.offset == expected, "placement", f"storage {index} at {storage.offset}, expected {expected}")
        reached[storage.file] += storage.size
    for file, end in zip(manifest.files, reached, strict=True):
        demand(file.size == end, "file-table", f"{file.name}: {file.size} bytes, its storages end at {end}")
        demand(
            len(file.header_sha256) == 32, "file-table", f"{file.name}: a SHA-256 of {len(file.header_sha256)} bytes"
        )


def headers(manifest: Manifest) -> list[bytes]:
    """What each file of the table must begin with, derived from the manifest; the index as a whole."""
    sharing = users(manifest)
    entries = [named(tensors, manifest.storages[index].size) for index, tensors in enumerate(sharing)]
    order = _order(manifest)
    members: list[list[int]] = [[] for _ in manifest.files]
    for index in order:
        members[manifest.storages[index].file].append(index)
    result = []
    for file, inside in zip(manifest.files, members, strict=True):
        if file.name == INDEX:
            result.append(_index(manifest, entries))
        elif file.name.startswith("extra-"):
            rows = {f"storage-{index:06d}": _bytes_of(manifest, index) for index in inside}
            result.append(_padded({"__metadata__": {"format": "pt"}, **rows}))
        else:
            result.append(_padded(_weights(manifest, inside, entries, sharing)))
    return result


def _bytes_of(manifest: Manifest, index: int) -> dict[str, object]:
    storage = manifest.storages[index]
    start = storage.offset - manifest.files[storage.file].header_size
    return {"dtype": "U8", "shape": [storage.size], "data_offsets": [start, start + storage.size]}


def _weights(
    manifest: Manifest, inside: Sequence[int], entries: Sequence[Sequence[Tensor]], sharing: Sequence[Sequence[Tensor]]
) -> dict[str, object]:
    aliases = {"format": "pt"}
    rows: dict[str, object] = {}
    for index in inside:
        storage = manifest.storages[index]
        begin = storage.offset - manifest.files[storage.file].header_size
        kept = {}
        for tensor in entries[index]:
            start = begin + tensor.offset
            end = start + prod(tensor.shape) * SIZES[tensor.dtype]
            dtype = SAFETENSORS[tensor.dtype]
            rows[tensor.name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
            kept[_view(tensor)] = tensor.name
        for tensor in sharing[index]:
            stands = kept.get(_view(tensor), tensor.name)
            if stands != tensor.name:
                aliases[tensor.name] = stands
    return {"__metadata__": aliases, **rows}


def _view(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.strides, tensor.offset


def _padded(header: dict[str, object]) -> bytes:
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    whole = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT
    return (whole - 8).to_bytes(8, "little") + text.ljust(whole - 8)


def _index(manifest: Manifest, entries: Sequence[Sequence[Tensor]]) -> bytes:
    files = [manifest.files[storage.file].name for storage in manifest.storages]
    homes = {tensor.name: files[tensor.storage] for kept in entries for tensor in kept}
    total = sum(storage.size for storage, kept in zip(manifest.storages, entries, strict=True) if kept)
    ordered = {name: homes[name] for name in sorted(homes, key=str.encode)}
    content = {"metadata": {"total_size": total}, "weight_map": ordered}
    return json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n"


def check_header(found: bytes, derived: bytes, name: str) -> None:
    """The first bytes of a file are those that its manifest asks for."""
    if found != derived:
        raise FaultError("header-mismatch", f"{name}: its header is not the one that follows from the manifest")
