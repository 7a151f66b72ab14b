"""A checkpoint read whole: every rule of ``checkpoint.md`` checked, every byte proved, every digest computed anew."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from treering_reader import adopted, digests, envelope, pieces, placement, signatures, wire
from treering_reader.faults import demand
from treering_reader.folder import Folder, reading
from treering_reader.layout import (
    CHUNK,
    NAME_AT_MOST,
    STORAGE_AT_MOST,
    ascending,
    check_chunks,
    check_storages,
    check_tensors,
    gathered,
    users,
)
from treering_reader.placement import lies_row_major
from treering_reader.schema import (
    MANIFEST,
    Attachment,
    Manifest,
    Piece,
    Signature,
    Statement,
    Storage,
    Tensor,
)
from treering_reader.signatures import Trust
from treering_reader.state import State

_RESERVED = {"manifest.pb", "model.safetensors.index.json", "delta.pb", "signatures.pb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One tensor: its record, and its elements in row-major order; ``pieces`` says how it was stored, if not whole."""

    record: Tensor
    pieces: tuple[Piece, ...]
    storage: bytes
    in_order: bool

    @property
    def content(self) -> bytes:
        return gathered(self.record, self.storage, in_order=self.in_order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint holds; digests are in text form, ``accepted`` is the statement of a trusted key, with trust."""

    manifest: Manifest
    state: Any
    tensors: dict[str, Loaded]
    attachments: dict[str, bytes]
    metadata: dict[str, str]
    signatures: tuple[Signature, ...]
    accepted: Statement | None
    weights_root: str
    state_root: str
    root: str
    attachments_root: str
    metadata_root: str
    seal: str


def read(path: str, *, root: str | None = None, trust: Trust | None = None) -> Checkpoint:
    """The checkpoint at a path: a folder, or one adopted file with its manifest beside it.

    Args:
        path: Where it lies.
        root: The root that it must have.
        trust: Whose signature it must have, asked for before a payload file is opened.

    Raises:
        FaultError: The first rule that it breaks, ``root-mismatch`` where it has another root.
    """
    alone = ""
    if not os.path.isdir(path):
        path, alone = os.path.split(os.path.realpath(path))
    found = reading(path, lambda folder: _read(folder, alone, trust))
    demand(root in (None, found.root), "root-mismatch", f"the root is {found.root}, expected {root}")
    return found


def _read(folder: Folder, alone: str, trust: Trust | None) -> Checkpoint:
    beside = f"{alone}." if alone else ""
    name = f"{beside}manifest.pb"
    demand(folder.has(name), "no-manifest", f"there is no {name!r}")
    content = folder.read(name, at_most=envelope.BODY_AT_MOST + envelope.AROUND)
    manifest: Manifest = wire.parse(envelope.opened(content, envelope.CHECKPOINT), MANIFEST)
    state = _checked(manifest)
    if alone:
        only = [file.name for file in manifest.files] == [alone] and not manifest.attachments
        demand(only, "file-table", f"a manifest beside {alone!r} names other files")
    roots = _roots(manifest, state.digest)
    signed = signatures.listed(folder, f"{beside}signatures.pb")
    accepted = None if trust is None else signatures.accepted(signed, roots["seal"], trust)
    storages = _storages(folder, manifest)
    attachments = {
        item.path: _proved(
            f"attachment {item.path!r}", folder.read(item.path, at_most=item.size, exactly=item.size), item
        )
        for item in manifest.attachments
    }
    return Checkpoint(
        manifest=manifest,
        state=state.value,
        tensors=_loaded(manifest, storages),
        attachments=attachments,
        metadata={entry.key: entry.value for entry in manifest.metadata},
        signatures=signed,
        accepted=accepted,
        **roots,
    )


def _loaded(manifest: Manifest, storages: Sequence[bytes]) -> dict[str, Loaded]:
    cut, sharing = pieces.by_tensor(manifest), users(manifest)
    loaded = {}
    for number, tensor in enumerate(manifest.tensors):
        content, in_order = storages[tensor.storage], lies_row_major(tensor, len(sharing[tensor.storage]))
        if number in cut:
            content, in_order = pieces.assembled(tensor, cut[number], storages), True
        loaded[tensor.name] = Loaded(
            record=tensor, pieces=tuple(cut.get(number, ())), storage=content, in_order=in_order
        )
    return loaded


def _roots(manifest: Manifest, state: bytes) -> dict[str, str]:
    """Every digest of a checkpoint, from its manifest alone."""
    weights = digests.of_weights(manifest)
    root = digests.of_root(manifest, weights, state)
    attached, metadata = digests.of_attachments(manifest), digests.of_metadata(manifest)
    return {
        "weights_root": digests.shown(weights),
        "state_root": digests.shown(state),
        "root": digests.shown(root),
        "attachments_root": digests.shown(attached),
        "metadata_root": digests.shown(metadata),
        "seal": digests.shown(digests.h("treering/seal/v1", root, attached, metadata)),
    }


def _checked(manifest: Manifest) -> State:
    """Every rule that needs the manifest alone; the state, since it is built on the way."""
    version = manifest.format_version
    demand(version == 1, "unknown-version", f"format version {version}, this reader knows 1")
    pieces.check_order(manifest)
    check_tensors(manifest)
    pieces.check_pieces(manifest)
    check_storages(manifest)
    state = State(manifest.state, manifest.tensors)
    _check_attachments(manifest.attachments)
    for name in ("metadata", "producer"):
        keys = [entry.key for entry in getattr(manifest, name)]
        demand(ascending(keys), "not-sorted", f"the keys of {name} are out of order or twice")
    if manifest.adopted:
        adopted.check_adopted(manifest)
    else:
        placement.check_placement(manifest)
    return state


def _check_attachments(attachments: Sequence[Attachment]) -> None:
    for item in attachments:
        check_chunks(f"attachment {item.path[:80]!r}", item)
        parts = item.path.split("/")
        plain = not set(parts) & {"", ".", ".."} and not set(item.path) & set("\\\0")
        plain = plain and len(item.path.encode()) <= NAME_AT_MOST
        free = parts[0] not in _RESERVED and not parts[0].startswith(("weights-", "extra-", "patch-"))
        demand(plain and free, "attachment-path", f"{item.path[:80]!r}")
    for outer, inner in pairwise(sorted(item.path.split("/") for item in attachments)):
        inside = len(outer) < len(inner) and inner[: len(outer)] == outer
        demand(not inside, "attachment-path", f"{'/'.join(inner)[:80]!r} lies inside another")
    demand(ascending([item.path for item in attachments]), "not-sorted", "attachments are out of order or twice")


def _storages(folder: Folder, manifest: Manifest) -> list[bytes]:
    derived = [] if manifest.adopted else placement.headers(manifest)
    contents = []
    for number, file in enumerate(manifest.files):
        content = folder.read(file.name, at_most=file.size, exactly=file.size)
        header = content[: file.header_size]
        same = hashlib.sha256(header).digest() == file.header_sha256
        demand(same, "header-mismatch", f"{file.name}: its header has another SHA-256 than the manifest states")
        if manifest.adopted:
            adopted.check_header(header, manifest, number)
        else:
            placement.check_header(header, derived[number], file.name)
        contents.append(content)
    return [
        _proved(f"storage {index}", contents[storage.file][storage.offset : storage.offset + storage.size], storage)
        for index, storage in enumerate(manifest.storages)
    ]


def _proved(named: str, content: bytes, described: Storage | Attachment) -> bytes:
    """The bytes, after the CRC-32 and the SHA-256 of each chunk were compared."""
    demand(described.size <= STORAGE_AT_MOST, "size-beyond-limit", named)
    for chunk, crc in enumerate(described.crc32):
        piece = content[chunk * CHUNK : (chunk + 1) * CHUNK]
        found = zlib.crc32(piece)
        demand(found == crc, "chunk-crc", f"chunk {chunk} of {named}: {found:08x}, expected {crc:08x}")
        digest, expected = hashlib.sha256(piece).digest(), described.sha256[32 * chunk : 32 * chunk + 32]
        demand(digest == expected, "chunk-sha256", f"chunk {chunk} of {named}: {digest.hex()}")
    return content
