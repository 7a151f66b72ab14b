"""The rules a manifest must keep, checked before anything it says is used.

Counts and sizes are compared with what is really there before they are multiplied or allocated; Python's integers
do not overflow. Whoever passes has names without duplicates, tensors inside their storages, storages inside their
files without overlap, and a state that refers to each tensor exactly once.
"""

import itertools
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np

from ckpt.digests import SHA256_BYTES, Chunks, chunk_count
from ckpt.dtypes import BY_NAME
from ckpt.errors import FormatError
from ckpt.manifest import Manifest
from ckpt.records import TensorRecord, normal_strides
from ckpt.state import TENSORS, Kind, Node
from ckpt.state_digest import state_digest

MAX_DIMENSIONS = 64
MAX_NAME_BYTES = 4096
MAX_STORAGE_BYTES = 1 << 48
MANIFEST_NAME = "manifest.pb"
INDEX_NAME = "model.safetensors.index.json"
RESERVED_NAMES = frozenset({MANIFEST_NAME, INDEX_NAME, "delta.pb", "signatures.pb"})
RESERVED_PREFIXES = ("weights-", "extra-", "patch-")


def check(manifest: Manifest, *, stored: bool = True) -> None:
    """Every rule that needs the manifest alone.

    Args:
        manifest: What was read or is about to be written.
        stored: Whether it describes files; the target inside a delta describes none.

    Raises:
        FormatError: with the path to the first fault.
    """
    for index, storage in enumerate(manifest.storages):
        _check_chunks(storage, f"manifest.storages[{index}]")
    _check_tensors(manifest)
    state_digest(manifest.state)
    _check_references(manifest)
    for index, item in enumerate(manifest.attachments):
        _check_chunks(item.chunks, f"manifest.attachments[{index}]")
        check_attachment_path(item.path)
    _expect_sorted([item.path for item in manifest.attachments], "manifest.attachments")
    if stored:
        _check_files(manifest)


def _check_chunks(chunks: Chunks, where: str) -> None:
    if chunks.size_bytes > MAX_STORAGE_BYTES:
        raise FormatError(where, f"{chunks.size_bytes} bytes", f"at most {MAX_STORAGE_BYTES}")
    expected = chunk_count(chunks.size_bytes)
    if len(chunks.crc32) != expected or len(chunks.sha256) != expected * SHA256_BYTES:
        raise FormatError(
            where, f"{len(chunks.crc32)} CRCs and {len(chunks.sha256)} bytes of SHA-256", f"{expected} chunks of each"
        )


def _check_tensors(manifest: Manifest) -> None:
    seen: set[str] = set()
    for tensor in manifest.tensors:
        where = f"manifest.tensors['{tensor.name[:80]}']"
        if tensor.name in seen or len(tensor.name.encode("utf-8")) > MAX_NAME_BYTES:
            raise FormatError(where, "a second tensor of that name or a long name", "unique names up to 4 KiB")
        seen.add(tensor.name)
        _check_tensor(tensor, manifest, where)
    order: dict[int, None] = {}
    for tensor in sorted(manifest.tensors, key=lambda tensor: tensor.name.encode("utf-8")):
        order.setdefault(tensor.storage)
    if list(order) != list(range(len(manifest.storages))):
        raise FormatError("manifest.storages", "another order", "the order of first use by the tensors sorted by name")


def _check_tensor(tensor: TensorRecord, manifest: Manifest, where: str) -> None:
    if tensor.dtype not in BY_NAME:
        raise FormatError(where, f"dtype '{tensor.dtype[:40]}'", f"one of {', '.join(BY_NAME)}")
    if len(tensor.shape) > MAX_DIMENSIONS or len(tensor.shape) != len(tensor.strides):
        raise FormatError(where, f"{len(tensor.shape)} sizes, {len(tensor.strides)} strides", "as many of each, ≤ 64")
    if tensor.storage >= len(manifest.storages):
        raise FormatError(where, f"storage {tensor.storage}", f"less than {len(manifest.storages)}")
    if tensor.strides != normal_strides(tensor.shape, tensor.strides):
        raise FormatError(where, f"strides {tensor.strides}", "normal strides")
    if tensor.offset % tensor.item_bytes:
        raise FormatError(where, f"offset {tensor.offset}", f"a multiple of {tensor.item_bytes}")
    end = tensor.offset + tensor.extent_bytes
    if end > manifest.storages[tensor.storage].size_bytes:
        raise FormatError(
            where, f"bytes up to {end}", f"within its storage of {manifest.storages[tensor.storage].size_bytes} bytes"
        )


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


def check_attachment_path(path: str) -> None:
    """Whether an attachment may stand at ``path``: relative, normalised, and no name of the format's own.

    Raises:
        FormatError: it may not.
    """
    pure = PurePosixPath(path)
    parts = pure.parts
    plain = path == str(pure) and not pure.is_absolute() and ".." not in parts and parts and "\0" not in path
    if not plain or "\\" in path or len(path.encode("utf-8")) > MAX_NAME_BYTES:
        raise FormatError(f"attachment '{path[:80]}'", "a path of that form", "a relative, normalised POSIX path")
    if parts[0] in RESERVED_NAMES or parts[0].startswith(RESERVED_PREFIXES):
        raise FormatError(f"attachment '{path[:80]}'", "a name that the format uses itself", "another name")


def _expect_sorted(names: Sequence[str], where: str) -> None:
    if any(first.encode() >= second.encode() for first, second in itertools.pairwise(names)):
        raise FormatError(where, "entries out of order or twice", "each once, sorted by UTF-8 bytes")


def _check_files(manifest: Manifest) -> None:
    names = [record.name for record in manifest.files]
    for name in names:
        if "/" in name or name in ("", ".", "..") or not name.startswith((*RESERVED_PREFIXES[:2], INDEX_NAME)):
            raise FormatError(
                f"manifest.files['{name[:80]}']", "a name of that form", "weights-…, extra-… or the index"
            )
    if len(set(names)) != len(names):
        raise FormatError("manifest.files", "a name twice", "each name once")
    if len(manifest.placements) != len(manifest.storages):
        raise FormatError("manifest.storages", "a storage without a place", "a place for each")
    _check_coverage(manifest)


def _check_coverage(manifest: Manifest) -> None:
    """Headers and storages fill each file exactly: no overlap, no hole, no trailing bytes."""
    reached = [record.header_bytes for record in manifest.files]
    by_place = sorted(
        zip(manifest.placements, manifest.storages, strict=True),
        key=lambda pair: (pair[0].file, pair[0].offset, pair[1].size_bytes),
    )
    for place, storage in by_place:
        if place.file >= len(reached) or place.offset != reached[place.file]:
            raise FormatError("manifest.storages", f"a storage at byte {place.offset}", "storages end to end in files")
        reached[place.file] += storage.size_bytes
    for record, end in zip(manifest.files, reached, strict=True):
        if record.size_bytes != end or len(record.header_sha256) != SHA256_BYTES:
            raise FormatError(f"manifest.files['{record.name}']", f"{record.size_bytes} bytes", f"{end} bytes")
