"""The rules a manifest must keep, checked before anything it says is used.

Counts and sizes are compared with what is really there before they are multiplied or allocated; Python's integers
do not overflow. Whoever passes has names without duplicates, tensors inside their storages, storages inside their
files without overlap, and a state that refers to each tensor exactly once.
"""

import itertools
from collections.abc import Sequence
from math import prod

import numpy as np

from ckpt.errors import FormatError
from ckpt.format.bounds import MAX_RECORDS
from ckpt.format.digests import CRC32_BYTES, SHA256_BYTES, Chunks, chunk_count
from ckpt.format.dtypes import ADOPTABLE, BY_NAME
from ckpt.format.manifest import Manifest
from ckpt.format.names import (
    INDEX_NAME,
    MAX_NAME_BYTES,
    WEIGHTS,
    check_adopted_name,
    check_attachment_paths,
    payload_kind,
)
from ckpt.format.piece_rules import check_pieces
from ckpt.format.records import MAX_DIMENSIONS, TensorRecord, normal_strides, views_of
from ckpt.format.shards import kind_of, place_order
from ckpt.format.state import TENSORS, Kind, Node
from ckpt.format.state_rules import check_state

MAX_STORAGE_BYTES = 1 << 48
MAX_VIEW_BYTES = 1 << 62  # of a view counted as if no element were repeated: torch counts in 63 bits


def check(manifest: Manifest, *, stored: bool = True) -> None:
    """Every rule that needs the manifest alone.

    Args:
        manifest: What was read or is about to be written.
        stored: Whether it describes files; the target inside a delta describes none.

    Raises:
        FormatError: with the path to the first fault.
    """
    records = len(manifest.storages) + len(manifest.tensors) + len(manifest.state) + len(manifest.pieces)
    if records > MAX_RECORDS:
        raise FormatError("manifest", f"{records} storages, tensors, nodes and pieces", f"at most {MAX_RECORDS}")
    for index, storage in enumerate(manifest.storages):
        _check_chunks(storage, f"manifest.storages[{index}]")
    check_pieces(manifest)
    _check_tensors(manifest)
    _check_extents(manifest)
    check_state(manifest.state)
    _check_references(manifest)
    _check_sizes(manifest.state)
    for index, item in enumerate(manifest.attachments):
        _check_chunks(item.chunks, f"manifest.attachments[{index}]")
    check_attachment_paths(item.path for item in manifest.attachments)
    _expect_sorted([item.path for item in manifest.attachments], "manifest.attachments")
    if manifest.adopted:
        _check_adopted(manifest)
    elif stored:
        _check_files(manifest)


def _check_chunks(chunks: Chunks, where: str) -> None:
    if chunks.size_bytes > MAX_STORAGE_BYTES:
        raise FormatError(where, f"{chunks.size_bytes} bytes", f"at most {MAX_STORAGE_BYTES}")
    expected = chunk_count(chunks.size_bytes)
    found = len(chunks.crc32), len(chunks.sha256)
    if found != (expected * CRC32_BYTES, expected * SHA256_BYTES):
        raise FormatError(
            where, f"{found[0] / CRC32_BYTES:g} CRCs and {found[1]} bytes of SHA-256", f"{expected} chunks of each"
        )


def _check_tensors(manifest: Manifest) -> None:
    seen: set[str] = set()
    for tensor in manifest.tensors:
        where = f"manifest.tensors['{tensor.name[:80]}']"
        if tensor.name in seen or len(tensor.name.encode("utf-8")) > MAX_NAME_BYTES:
            raise FormatError(where, "a second tensor of that name or a long name", "unique names up to 4 KiB")
        seen.add(tensor.name)
        _check_tensor(tensor, manifest, where)
    views = views_of(manifest.tensors, manifest.pieces)
    by_name = sorted((view.name.encode("utf-8"), view.piece_at or (), view.storage) for view in views)
    order = dict.fromkeys(storage for *_, storage in by_name)
    if list(order) != list(range(len(manifest.storages))):
        raise FormatError("manifest.storages", "another order", "the order of first use by the tensors sorted by name")


def _check_tensor(tensor: TensorRecord, manifest: Manifest, where: str) -> None:
    if tensor.dtype not in BY_NAME:
        raise FormatError(where, f"dtype '{tensor.dtype[:40]}'", f"one of {', '.join(BY_NAME)}")
    if len(tensor.shape) > MAX_DIMENSIONS or len(tensor.shape) != len(tensor.strides):
        raise FormatError(where, f"{len(tensor.shape)} sizes, {len(tensor.strides)} strides", "as many of each, ≤ 64")
    if prod(max(size, 1) for size in tensor.shape) * tensor.item_bytes > MAX_VIEW_BYTES:
        raise FormatError(where, f"shape {tensor.shape}", f"at most {MAX_VIEW_BYTES} bytes, were none repeated")
    if tensor.storage >= len(manifest.storages):
        raise FormatError(where, f"storage {tensor.storage}", f"less than {len(manifest.storages)}")
    if tensor.strides != normal_strides(tensor.shape, tensor.strides):
        raise FormatError(where, f"strides {tensor.strides}", "normal strides")
    if tensor.offset % tensor.item_bytes:
        raise FormatError(where, f"offset {tensor.offset}", f"a multiple of {tensor.item_bytes}")
    end = tensor.offset + tensor.extent_bytes
    if tensor.name not in manifest.pieces_of and end > manifest.storages[tensor.storage].size_bytes:
        raise FormatError(
            where, f"bytes up to {end}", f"within its storage of {manifest.storages[tensor.storage].size_bytes} bytes"
        )


def _check_extents(manifest: Manifest) -> None:
    """A storage holds what its tensors cover: it starts with the first of them and ends with the last."""
    for index, users in enumerate(manifest.users):
        size = manifest.storages[index].size_bytes
        if len(users) == 1 and users[0].offset == 0 and users[0].extent_bytes == size:
            continue
        widest = max(tensor.item_bytes for tensor in users)
        first = min(tensor.offset for tensor in users)
        last = max(tensor.offset + tensor.extent_bytes for tensor in users)
        shared_or_shifted = len(users) > 1 or users[0].offset
        if first >= widest or last != size or (size == 0 and shared_or_shifted):
            raise FormatError(
                f"manifest.storages[{index}]", f"{size} bytes for tensors from byte {first} to {last}", "those alone"
            )
        if any(tensor.size_bytes == 0 for tensor in users) and size:
            raise FormatError(f"manifest.storages[{index}]", "an empty tensor that shares it", "one of its own")


def _check_sizes(state: Sequence[Node]) -> None:
    """The elements of a torch.Size are integers of 64 bits."""
    for index, node in enumerate(state):
        if node.kind is Kind.SIZE:
            for item in state[index + 1 : index + 1 + node.count]:
                if item.kind is not Kind.INT or len(item.data) > 8:
                    raise FormatError("manifest.state (SIZE)", f"a {item.kind.name} in it", "integers of 64 bits")


def _check_references(manifest: Manifest) -> None:
    referred = [node for node in manifest.state if node.kind in TENSORS]
    if sorted(node.name for node in referred) != sorted(manifest.by_name):
        raise FormatError("manifest.state", "references to other tensors than the table's", "each tensor exactly once")
    for node in referred:
        _check_reference(node, manifest.by_name[node.name])


def _check_reference(node: Node, tensor: TensorRecord) -> None:
    where = f"manifest.state['{node.name[:80]}']"
    if node.requires_grad and not tensor.dtype.startswith(("float", "bfloat", "complex")):
        raise FormatError(where, f"a gradient of dtype {tensor.dtype}", "gradients of floating-point tensors only")
    if node.kind is Kind.NDARRAY and np.dtype(node.data.decode()).name != tensor.dtype:
        raise FormatError(where, f"a NumPy array {node.data.decode()}", f"the dtype of its tensor, {tensor.dtype}")


def _expect_sorted(names: Sequence[str], where: str) -> None:
    if any(first.encode() >= second.encode() for first, second in itertools.pairwise(names)):
        raise FormatError(where, "entries out of order or twice", "each once, sorted by UTF-8 bytes")


def _check_files(manifest: Manifest) -> None:
    names = [record.name for record in manifest.files]
    kinds = [payload_kind(name) for name in names]
    if len(set(names)) != len(names):
        raise FormatError("manifest.files", "a name twice", "each name once")
    if (WEIGHTS in kinds) != (INDEX_NAME in names):
        raise FormatError("manifest.files", f"files {', '.join(names)[:200]}", f"{INDEX_NAME} beside {WEIGHTS}- files")
    order = (place_order(index, storage.size_bytes) for index, storage in enumerate(manifest.storages))
    _check_coverage(manifest, [index for _, index in sorted(order)])
    for index, place in enumerate(manifest.placements):
        belongs = kind_of(manifest.entries[index])
        if kinds[place.file] != belongs:
            raise FormatError(f"manifest.storages[{index}]", f"a place in {names[place.file]}", f"one in {belongs}-…")


def _check_adopted(manifest: Manifest) -> None:
    """Files as others write them: each storage is one plain tensor, and they lie in any order."""
    names = [record.name for record in manifest.files]
    payload = [name for name in names if name != INDEX_NAME]
    for name in payload:
        check_adopted_name(name)
    indexed = INDEX_NAME in names
    if len(set(names)) != len(names) or not payload or (len(payload) > 1 and not indexed):
        raise FormatError("manifest.files", f"files {', '.join(names)[:200]}", f"one, or several and {INDEX_NAME}")
    if manifest.pieces:
        raise FormatError("manifest.pieces", "pieces in files that others wrote", "whole tensors")
    for index, users in enumerate(manifest.users):
        plain = len(users) == 1 and users[0].offset == 0 and users[0].is_contiguous
        if not plain or users[0].dtype not in ADOPTABLE:
            raise FormatError(f"manifest.storages[{index}]", "what no safetensors header names", "one plain tensor")
    places = enumerate(zip(manifest.placements, manifest.storages, strict=True))
    _check_coverage(manifest, [i for *_, i in sorted((place.offset, own.size_bytes, i) for i, (place, own) in places)])


def _check_coverage(manifest: Manifest, order: Sequence[int]) -> None:
    """Headers and storages fill each file exactly, in this order: no overlap, no hole, no trailing bytes."""
    reached = [record.header_bytes for record in manifest.files]
    held = [False] * len(manifest.files)
    for index in order:
        place = manifest.placements[index]
        if place.file >= len(reached) or place.offset != reached[place.file]:
            raise FormatError(
                f"manifest.storages[{index}]", f"byte {place.offset} of file {place.file}", "storages end to end"
            )
        reached[place.file] += manifest.storages[index].size_bytes
        held[place.file] = True
    for record, end, holds in zip(manifest.files, reached, held, strict=True):
        if record.size_bytes != end:
            raise FormatError(f"manifest.files['{record.name}']", f"{record.size_bytes} bytes", f"{end} bytes")
        if len(record.header_sha256) != SHA256_BYTES:
            found = f"a SHA-256 of {len(record.header_sha256)} bytes"
            raise FormatError(f"manifest.files['{record.name}']", found, f"{SHA256_BYTES}")
        if holds == (record.name == INDEX_NAME) and (holds or not manifest.adopted):
            raise FormatError(
                f"manifest.files['{record.name}']", "no storage, or one in the index", "storages in payload"
            )
