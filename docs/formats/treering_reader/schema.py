"""The messages of ``ckpt/proto/checkpoint.proto`` and ``signatures.proto``, as values and as tables of fields."""

from __future__ import annotations

from dataclasses import dataclass

from treering_reader.wire import Field, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    size: int = 0
    crc32: tuple[int, ...] = ()
    sha256: bytes = b""
    file: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    name: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    storage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    kind: int = 0
    count: int = 0
    data: bytes = b""
    name: str = ""
    requires_grad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    name: str = ""
    size: int = 0
    header_size: int = 0
    header_sha256: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    path: str = ""
    size: int = 0
    crc32: tuple[int, ...] = ()
    sha256: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    key: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    tensor: int = 0
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    storage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    format_version: int = 0
    storages: tuple[Storage, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    state: tuple[Node, ...] = ()
    files: tuple[File, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    metadata: tuple[Entry, ...] = ()
    producer: tuple[Entry, ...] = ()
    adopted: bool = False
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    key_id: bytes = b""
    statement: bytes = b""
    signature: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures:
    signatures: tuple[Signature, ...] = ()
    target: tuple[Signature, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    format_version: int = 0
    kind: int = 0
    subject: bytes = b""
    line: str = ""
    issued_at_ms: int = 0
    not_after_ms: int = 0
    key_id: bytes = b""


def _fields(**types: str) -> dict[int, Field]:
    return {number: Field(name, kind) for number, (name, kind) in enumerate(types.items(), 1)}


_CHUNKS = {"crc32": "packed fixed32", "sha256": "bytes"}
_STORAGE = Message(Storage, _fields(size="uint64", **_CHUNKS, file="uint32", offset="uint64"))
_TENSOR = Message(
    Tensor,
    _fields(
        name="string",
        dtype="string",
        shape="packed uint64",
        strides="packed uint64",
        offset="uint64",
        storage="uint32",
    ),
)
_NODE = Message(Node, _fields(kind="enum", count="uint64", data="bytes", name="string", requires_grad="bool"))
_FILE = Message(File, _fields(name="string", size="uint64", header_size="uint64", header_sha256="bytes"))
_ATTACHMENT = Message(Attachment, _fields(path="string", size="uint64", **_CHUNKS))
_PIECE = Message(Piece, _fields(tensor="uint32", offsets="packed uint64", sizes="packed uint64", storage="uint32"))
_ENTRY = Message(Entry, _fields(key="string", value="string"))
_SIGNATURE = Message(Signature, _fields(key_id="bytes", statement="bytes", signature="bytes"))

MANIFEST = Message(
    Manifest,
    {
        1: Field("format_version", "uint32"),
        2: Field("storages", "message", _STORAGE),
        3: Field("tensors", "message", _TENSOR),
        4: Field("state", "message", _NODE),
        5: Field("files", "message", _FILE),
        6: Field("attachments", "message", _ATTACHMENT),
        7: Field("metadata", "message", _ENTRY),
        8: Field("producer", "message", _ENTRY),
        9: Field("adopted", "bool"),
        10: Field("pieces", "message", _PIECE),
    },
)
SIGNATURES = Message(
    Signatures, {1: Field("signatures", "message", _SIGNATURE), 2: Field("target", "message", _SIGNATURE)}
)
STATEMENT = Message(
    Statement,
    _fields(
        format_version="uint32",
        kind="enum",
        subject="bytes",
        line="string",
        issued_at_ms="uint64",
        not_after_ms="uint64",
        key_id="bytes",
    ),
)
