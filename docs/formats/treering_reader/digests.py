"""``H`` and the digests that are built from it: storage, weights, root, attachments, metadata, seal."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from treering_reader.schema import Attachment, Manifest, Storage


def h(domain: str, *fields: bytes) -> bytes:
    """SHA-256 over the ASCII domain, a zero byte, and the fields one after the other."""
    return hashlib.sha256(domain.encode("ascii") + b"\0" + b"".join(fields)).digest()


def integer(value: int) -> bytes:
    return struct.pack("<Q", value)


def data(value: bytes) -> bytes:
    return integer(len(value)) + value


def text(value: str) -> bytes:
    return data(value.encode("utf-8"))


def integers(values: Iterable[int]) -> bytes:
    listed = list(values)
    return b"".join(map(integer, [len(listed), *listed]))


def of_storage(storage: Storage | Attachment) -> bytes:
    return h("treering/storage/v1", integer(storage.size), integer(len(storage.crc32)), storage.sha256)


def of_weights(manifest: Manifest) -> bytes:
    fields = [integer(len(manifest.storages)), *map(of_storage, manifest.storages), integer(len(manifest.tensors))]
    for tensor in sorted(manifest.tensors, key=lambda tensor: tensor.name.encode()):
        fields += [text(tensor.name), text(tensor.dtype), integers(tensor.shape), integers(tensor.strides)]
        fields += [integer(tensor.offset), integer(tensor.storage)]
    return h("treering/weights/v1", *fields)


def of_pieces(manifest: Manifest) -> bytes:
    named = ((manifest.tensors[piece.tensor].name, piece) for piece in manifest.pieces)
    fields = [integer(len(manifest.pieces))]
    for name, piece in sorted(named, key=lambda pair: (pair[0].encode(), pair[1].offsets)):
        fields += [text(name), integers(piece.offsets), integers(piece.sizes), integer(piece.storage)]
    return h("treering/pieces/v1", *fields)


def of_root(manifest: Manifest, weights: bytes, state: bytes) -> bytes:
    if manifest.pieces:
        return h("treering/pieced-root/v1", weights, of_pieces(manifest), state)
    return h("treering/root/v1", weights, state)


def of_attachments(manifest: Manifest) -> bytes:
    listed = sorted(manifest.attachments, key=lambda attachment: attachment.path.encode())
    fields = [field for attachment in listed for field in (text(attachment.path), of_storage(attachment))]
    return h("treering/attachments/v1", integer(len(listed)), *fields)


def of_metadata(manifest: Manifest) -> bytes:
    listed = sorted(manifest.metadata, key=lambda entry: entry.key.encode())
    fields = [field for entry in listed for field in (text(entry.key), text(entry.value))]
    return h("treering/metadata/v1", integer(len(listed)), *fields)


def shown(digest: bytes) -> str:
    return f"sha256:{digest.hex()}"
