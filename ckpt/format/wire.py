"""Protobuf messages ↔ values, in an envelope that is canonical byte for byte.

A file is magic, u64 length of the body, the body, SHA-256 of the body. The body is a message, of a delta packed. A
message is accepted only when it holds no unknown field at any level and serialising what was parsed gives the same
bytes: one content has one encoding, and nothing can be hidden in it. Size and number of records are checked before
parsing, lengths of repeated fields before they become values.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ckpt.errors import FormatError, VersionError
from ckpt.format.bounds import check_records
from ckpt.format.digests import CRC32_BYTES, SHA256_BYTES, Chunks, chunk_count, sha256
from ckpt.format.dtypes import BY_NAME
from ckpt.format.manifest import FORMAT_VERSION, Attachment, FileRecord, Manifest, Placement
from ckpt.format.packing import pack, stated_size, unpack
from ckpt.format.piece_rules import MAX_PIECES
from ckpt.format.records import MAX_DIMENSIONS, PieceRecord, TensorRecord
from ckpt.format.state import Kind, Node
from ckpt.proto import checkpoint_pb2 as pb

MAX_BODY_BYTES = 512 << 20
MANIFEST_MAGIC = b"treering-ckpt\r\n\x01"
DELTA_MAGIC = b"treering-dlta\r\n\x01"
_LENGTH = struct.Struct("<Q")
_OVERHEAD = len(MANIFEST_MAGIC) + _LENGTH.size + 32
MAX_FILE_BYTES = MAX_BODY_BYTES + _OVERHEAD
_PACKED = frozenset({DELTA_MAGIC})  # names and counts are most of a small delta
_STORED, _ZSTD = b"\0", b"\1"
_MOST_PACKING = 1024  # bytes for each packed one: a message that repeats itself more is stored as it is
_THOROUGHLY_BYTES = 1 << 18  # up to here zstd takes milliseconds at its best

M = TypeVar("M", bound=Message)


def seal_envelope(message: Message, magic: bytes) -> bytes:
    """The bytes of a file that holds ``message``."""
    body = message.SerializeToString(deterministic=True)
    if magic in _PACKED:
        body = _packed(body)
    return magic + _LENGTH.pack(len(body)) + body + sha256(body)


def open_envelope(data: bytes, message: M, magic: bytes, where: str) -> M:
    """Parse a file's bytes into ``message``.

    Raises:
        VersionError: the magic of another version.
        FormatError: another magic, length or checksum, or a message that is not canonical.
    """
    if data[: len(magic) - 1] == magic[:-1] and len(data) > len(magic) and data[len(magic) - 1] != magic[-1]:
        raise VersionError(f"{where}: the envelope", f"version {data[len(magic) - 1]}", f"version {magic[-1]}")
    if len(data) < _OVERHEAD or data[: len(magic)] != magic:
        raise FormatError(where, f"{len(data)} bytes beginning {data[:16]!r}", f"the magic {magic!r}")
    (length,) = _LENGTH.unpack_from(data, len(magic))
    if length != len(data) - _OVERHEAD:
        raise FormatError(where, f"a body of {len(data) - _OVERHEAD} bytes", f"{length} bytes as it states")
    body, checksum = body_of(data), data[-32:]
    if sha256(body) != checksum:
        raise FormatError(where, f"sha256 {sha256(body).hex()}", checksum.hex())
    return canonical(_unpacked(body, where) if magic in _PACKED else body, message, where)


def _packed(message: bytes) -> bytes:
    """A byte that tells the form, and the message as it is or as a zstd frame."""
    frame = pack(message, level=19 if len(message) <= _THOROUGHLY_BYTES else 3)
    return _ZSTD + frame if len(message) / _MOST_PACKING <= len(frame) < len(message) else _STORED + message


def _unpacked(body: bytes, where: str) -> bytes:
    form, data = body[:1], body[1:]
    if form == _STORED:
        return data
    try:
        if form != _ZSTD:
            raise ValueError(f"a body of form {form!r}")
        size = stated_size(data)
        if size > min(MAX_BODY_BYTES, _MOST_PACKING * len(data)):
            raise ValueError(f"{len(data)} bytes that would become {size}")
        return unpack(data, size=size)
    except ValueError as error:
        expected = f"{_STORED!r} and a message, or {_ZSTD!r} and a zstd frame of at most {_MOST_PACKING} × its size"
        raise FormatError(where, str(error), expected) from None


def canonical(body: bytes, message: M, where: str) -> M:
    """Parse the bytes of a message into ``message``.

    Raises:
        FormatError: too many records, unknown fields, or another encoding of the same content.
    """
    check_records(body, message, where)
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise FormatError(where, f"no protobuf message ({error})", message.DESCRIPTOR.full_name) from None
    message.DiscardUnknownFields()  # type: ignore[no-untyped-call, unused-ignore]
    if message.SerializeToString(deterministic=True) != body:
        raise FormatError(where, "unknown fields or another encoding", "the canonical encoding of known fields")
    return message


def body_of(data: bytes) -> bytes:
    """What the envelope holds."""
    return data[_OVERHEAD - 32 : -32]


def manifest_to_bytes(manifest: Manifest) -> bytes:
    return seal_envelope(manifest_message(manifest), MANIFEST_MAGIC)


def manifest_from_bytes(data: bytes, where: str) -> Manifest:
    """Parse; the rules of :mod:`ckpt.format.rules` are the caller's next step."""
    return manifest_value(open_envelope(data, pb.Manifest(), MANIFEST_MAGIC, where))


def manifest_message(manifest: Manifest) -> pb.Manifest:
    message = pb.Manifest(format_version=FORMAT_VERSION, adopted=manifest.adopted)
    for index, chunks in enumerate(manifest.storages):
        place = manifest.placements[index] if manifest.placements else Placement(file=0, offset=0)
        message.storages.add(
            size=chunks.size_bytes, crc32=chunks.crc32, sha256=chunks.sha256, file=place.file, offset=place.offset
        )
    for tensor in manifest.tensors:
        message.tensors.add(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            strides=tensor.strides,
            offset=tensor.offset,
            storage=tensor.storage,
        )
    for node in manifest.state:
        message.state.add(
            kind=int(node.kind), count=node.count, data=node.data, name=node.name, requires_grad=node.requires_grad
        )  # type: ignore[call-overload, unused-ignore]
    for record in manifest.files:
        message.files.add(
            name=record.name,
            size=record.size_bytes,
            header_size=record.header_bytes,
            header_sha256=record.header_sha256,
        )
    for item in manifest.attachments:
        message.attachments.add(
            path=item.path, size=item.chunks.size_bytes, crc32=item.chunks.crc32, sha256=item.chunks.sha256
        )
    for key, value in sorted(manifest.metadata.items()):
        message.metadata.add(key=key, value=value)
    for key, value in sorted(manifest.producer.items()):
        message.producer.add(key=key, value=value)
    for piece in manifest.pieces:
        message.pieces.add(tensor=piece.tensor, offsets=piece.offsets, sizes=piece.sizes, storage=piece.storage)
    return message


def manifest_value(message: pb.Manifest, *, whole: bool = True) -> Manifest:
    """The message as a value.

    Args:
        message: Parsed and canonical.
        whole: Whether every chunk must have its digests; inside a delta those that did not change are left out.

    Raises:
        VersionError: of another version.
        FormatError: an unknown kind, too many digests or dimensions, entries out of order.
    """
    if message.format_version != FORMAT_VERSION:
        raise VersionError("manifest.format_version", str(message.format_version), str(FORMAT_VERSION))
    _check_counts(message)
    return Manifest(
        state=tuple(_node(node) for node in message.state),
        tensors=tuple(_tensor(tensor) for tensor in message.tensors),
        storages=tuple(_chunks(storage, whole=whole) for storage in message.storages),
        placements=tuple(Placement(file=storage.file, offset=storage.offset) for storage in message.storages),
        files=tuple(
            FileRecord(
                name=record.name,
                size_bytes=record.size,
                header_bytes=record.header_size,
                header_sha256=record.header_sha256,
            )
            for record in message.files
        ),
        attachments=tuple(
            Attachment(path=item.path, chunks=_chunks(item, whole=whole)) for item in message.attachments
        ),
        metadata=_entries(message.metadata, "manifest.metadata"),
        producer=_entries(message.producer, "manifest.producer"),
        adopted=message.adopted,
        pieces=tuple(_piece(piece) for piece in message.pieces),
    )


def _check_counts(message: pb.Manifest) -> None:
    """Refuse records that belong to nothing while they are messages: as values they take ten times the memory."""
    storages, pieces = len(message.storages), len(message.pieces)
    tensors, nodes = len(message.tensors), len(message.state)
    if tensors > nodes or storages > tensors + pieces or pieces > tensors * MAX_PIECES:
        found = f"{nodes} nodes for {tensors} tensors, {pieces} pieces and {storages} storages"
        raise FormatError(
            "manifest", found, "a node for each tensor, a tensor for each piece, one of both for a storage"
        )
    for what, names in (
        ("files", [record.name for record in message.files]),
        ("attachments", [item.path for item in message.attachments]),
    ):
        if len(set(names)) != len(names):
            raise FormatError(f"manifest.{what}", "a name twice", "each name once")


def _chunks(message: pb.Storage | pb.Attachment, *, whole: bool) -> Chunks:
    """The digests; inside a delta some are left out."""
    expected, crcs, hashes = chunk_count(message.size), len(message.crc32), len(message.sha256)
    found = crcs // CRC32_BYTES
    fits = found == expected if whole else found <= expected
    if not fits or (crcs, hashes) != (found * CRC32_BYTES, found * SHA256_BYTES):
        raise FormatError(
            "manifest: a run of bytes",
            f"{crcs / CRC32_BYTES:g} CRCs and {hashes} bytes of SHA-256",
            f"{expected} chunks of each for {message.size} bytes",
        )
    return Chunks(size_bytes=message.size, crc32=message.crc32, sha256=message.sha256)


def _tensor(message: pb.Tensor) -> TensorRecord:
    if len(message.shape) > MAX_DIMENSIONS or len(message.shape) != len(message.strides):
        raise FormatError(
            f"manifest.tensors['{message.name[:80]}']",
            f"{len(message.shape)} sizes, {len(message.strides)} strides",
            f"as many of each, at most {MAX_DIMENSIONS}",
        )
    record = TensorRecord(
        name=message.name,
        dtype=message.dtype,
        shape=tuple(message.shape),
        strides=tuple(message.strides),
        offset=message.offset,
        storage=message.storage,
    )
    if not record.item_bytes:
        where = f"manifest.tensors['{message.name[:80]}']"
        raise FormatError(where, f"dtype '{message.dtype[:40]}'", f"one of {', '.join(BY_NAME)}")
    return record


def _piece(message: pb.Piece) -> PieceRecord:
    if len(message.sizes) > MAX_DIMENSIONS or len(message.sizes) != len(message.offsets):
        raise FormatError(
            "manifest.pieces",
            f"{len(message.offsets)} offsets, {len(message.sizes)} sizes",
            f"as many of each, at most {MAX_DIMENSIONS}",
        )
    return PieceRecord(
        tensor=message.tensor, offsets=tuple(message.offsets), sizes=tuple(message.sizes), storage=message.storage
    )


def _node(message: pb.Node) -> Node:
    try:
        kind = Kind(message.kind)
    except ValueError:
        raise FormatError("manifest.state", f"kind {message.kind}", f"1 … {max(Kind)}") from None
    return Node(
        kind=kind,
        count=message.count,
        data=message.data,
        name=message.name,
        requires_grad=message.requires_grad,
    )


def _entries(message: Iterable[pb.Entry], where: str) -> Mapping[str, str]:
    entries: dict[str, str] = {}
    last = ""
    for number, entry in enumerate(message):
        if number and entry.key <= last:
            raise FormatError(where, "keys out of order or twice", "each key once, sorted")
        last = entry.key
        entries[last] = entry.value
    return entries
