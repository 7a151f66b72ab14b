"""Lies with a right checksum: manifests and deltas that are edited and sealed again."""

import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import torch
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import ckpt
from ckpt.format.digests import crc32, sha256
from ckpt.format.names import MANIFEST_NAME
from ckpt.format.shards import headers_of
from ckpt.format.state import Kind
from ckpt.format.wire import DELTA_MAGIC, MANIFEST_MAGIC, manifest_from_bytes, seal_envelope
from ckpt.proto import checkpoint_pb2, delta_pb2
from tests.hostile.envelopes import message_in

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer as RepeatedCompositeContainer

Edit = Callable[..., object]  # changes a message in place; what it returns is ignored


def save_victim(folder: Path) -> None:
    """A checkpoint with a row of every table: storages of each layout, each kind of node, two attachments."""
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(name * 3)
    flat = torch.arange(12.0)
    state = {
        "empty": torch.empty(0, 3),
        "floats": torch.arange(6.0).reshape(2, 3),
        "ints": torch.arange(4),
        "last": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "odd": torch.arange(9.0)[::2],
        "one": flat[:8],
        "two": flat[4:],
        "grad": torch.nn.Parameter(torch.ones(2)),
        "array": np.arange(3, dtype=np.float32),
        "plain": [None, True, 7, 1.5, 2j, "text", b"bytes", torch.float32, torch.device("cpu"), np.float32(2)],
        "ordered": OrderedDict(x=1),
        "size": torch.Size([2, 3]),
        "pair": ({1: "int", "k": "str"},),
    }
    attachments = {"docs/a.txt": folder / "a.txt", "docs/b.txt": folder / "b.txt"}
    ckpt.save(state, folder / "victim", attachments=attachments, metadata={"k": "v", "l": "w"})


def rewrite_manifest(folder: Path, edit: Edit) -> None:
    rewrite(folder / MANIFEST_NAME, checkpoint_pb2.Manifest(), MANIFEST_MAGIC, edit)


def rewrite_delta(folder: Path, edit: Edit) -> None:
    rewrite(folder / "delta.pb", delta_pb2.Delta(), DELTA_MAGIC, edit)


def rewrite(file: Path, message: Message, magic: bytes, edit: Edit) -> None:
    """Parse a file, change it, and seal it with the checksum of what it says now."""
    message.ParseFromString(message_in(file.read_bytes()))
    edit(message)
    file.write_bytes(seal_envelope(message, magic))


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


def crc32_field(chunk: bytes | memoryview) -> bytes:
    """The CRC-32 of one chunk as manifests state it."""
    return crc32(chunk).to_bytes(4, "little")


def put(message: Message, **fields: object) -> None:
    """Set fields; a list replaces a repeated field."""
    for name, value in fields.items():
        if isinstance(value, list):
            message.ClearField(name)
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)


def tensor(message: checkpoint_pb2.Manifest, name: str) -> checkpoint_pb2.Tensor:
    return next(item for item in message.tensors if item.name == name)


def storage(message: checkpoint_pb2.Manifest, name: str) -> checkpoint_pb2.Storage:
    return message.storages[tensor(message, name).storage]


def node(message: checkpoint_pb2.Manifest, kind: Kind, number: int = 0) -> checkpoint_pb2.Node:
    return [item for item in message.state if item.kind == kind][number]


def forge_files(folder: Path) -> None:
    """Give the payload files the headers that the manifest implies, and the manifest their new digests."""
    data = (folder / MANIFEST_NAME).read_bytes()
    manifest = manifest_from_bytes(data, "forged")
    headers = headers_of(manifest)

    def adjust(message: checkpoint_pb2.Manifest) -> None:
        for record in message.files:
            header, payload = headers[record.name], (folder / record.name).read_bytes()[record.header_size :]
            (folder / record.name).write_bytes(header + payload)
            put(record, header_sha256=sha256(header), header_size=len(header), size=len(header) + len(payload))

    rewrite_manifest(folder, adjust)


NUMBERS = (0, 1, 2, 7, 255, 2**20, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = ("", "x", "../x", "floats", "ints", "float64", "<f8", "a/b", "weights-00001-00000000.safetensors", "raw", "é")
BYTES = (b"", b"\0", b"\1", b"\xff", b"\0" * 8, b"\7" * 16, b"\7" * 32, b"<f4", b"cpu", b"\0" * 64)


def mutate(message: Message, choose: Random) -> None:
    """Change one field of one message somewhere below ``message``."""
    fields = list(message.DESCRIPTOR.fields)
    field = choose.choice(fields)
    if field.message_type is not None and not field.is_repeated:
        mutate(getattr(message, field.name), choose)
    elif field.message_type is not None:
        _mutate_messages(getattr(message, field.name), choose)
    elif field.is_repeated:
        values = list(getattr(message, field.name))
        values.insert(choose.randint(0, len(values)), _value(field, choose))
        put(message, **{field.name: values[choose.randint(0, 1) :][: choose.randint(0, len(values))]})
    else:
        setattr(message, field.name, _value(field, choose))


def _mutate_messages(items: "RepeatedCompositeContainer[Message]", choose: Random) -> None:
    action = choose.choice(["inside"] * 6 + ["drop", "double", "swap"])
    if not items:
        items.add()
        return
    one, two = choose.randrange(len(items)), choose.randrange(len(items))
    if action == "inside":
        mutate(items[one], choose)
    elif action == "drop":
        del items[one]
    elif action == "double":
        items.add().CopyFrom(items[one])
    else:
        kept = type(items[one])()
        kept.CopyFrom(items[one])
        items[one].CopyFrom(items[two])
        items[two].CopyFrom(kept)


def _value(field: FieldDescriptor, choose: Random) -> object:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_UINT32:
            return choose.choice(NUMBERS) % 2**32
        case FieldDescriptor.CPPTYPE_UINT64:
            return choose.choice(NUMBERS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return choose.randrange(-1, 25)
        case FieldDescriptor.CPPTYPE_BOOL:
            return choose.random() < 0.5
        case _ if field.type == FieldDescriptor.TYPE_BYTES:
            return choose.choice(BYTES)
        case _:
            return choose.choice(TEXTS)


def save_pair(folder: Path) -> None:
    """``old``, ``new`` and the ``delta`` between them, with frames of several codecs and operations of every kind."""
    torch.manual_seed(0)
    old = {
        "sparse": torch.randn(600_000).bfloat16(),
        "dense": torch.randn(1000),
        "same": torch.randn(100),
        "table": torch.randn(50, 16),
        "dropped": torch.randn(5),
    }
    new = {name: tensor.clone() for name, tensor in old.items() if name != "dropped"}
    new["sparse"].view(torch.int16)[-9000::97] += 1
    new["dense"] *= 1.0001
    new["table"] = torch.cat([old["table"][:20], torch.randn(2, 16), old["table"][20:]])
    new["fresh"] = torch.randn(7)
    for name, text in (("v1", "tokens\n" * 900), ("v2", "tokens\n" * 400 + "more\n" + "tokens\n" * 500)):
        (folder / name).write_text(text)
    ckpt.save(old, folder / "old", attachments={"same.txt": folder / "v1", "vocab.txt": folder / "v1"})
    ckpt.save(new, folder / "new", attachments={"same.txt": folder / "v1", "vocab.txt": folder / "v2"})
    ckpt.diff(folder / "old", folder / "new", folder / "delta", codecs=("sparse", "planes", "bsdiff"))


def save_moved(folder: Path) -> None:
    """Three more deltas for the ``old`` of :func:`save_pair`: ``moved``, ``to-one``, ``chained`` of it and another."""
    old = ckpt.load(folder / "old")
    changes = {"rows": ([2, 0, 1], 89), "one": ([0, 1, 2], 7), "two": ([0, 1, 2], 5)}
    for name, (order, step) in changes.items():
        sparse = old["sparse"].reshape(3, -1)[order].reshape(-1)
        sparse.view(torch.int16)[::step] += 1
        ckpt.save(old | {"sparse": sparse}, folder / name)
    ckpt.diff(folder / "old", folder / "rows", folder / "moved")
    for before, after in (("old", "one"), ("one", "two")):
        ckpt.diff(folder / before, folder / after, folder / f"to-{after}", codecs=("contextual",))
    ckpt.squash([folder / "to-one", folder / "to-two"], folder / "chained")


def refresh_frames(folder: Path, choose: Random) -> None:
    """Change bytes of one encoded frame and state its new SHA-256, so that the decoder gets to see them."""
    file = folder / "patch-00001.bin"

    def adjust(message: delta_pb2.Delta) -> None:
        frames = [frame for part in (message.storages, message.attachments) for each in part for frame in each.frames]
        frame = choose.choice(frames)
        data = bytearray(file.read_bytes())
        for _ in range(choose.randint(1, 4)):
            head = choose.random() < 0.7  # counts and stream heads, mostly
            data[frame.patch_offset + choose.randrange(min(frame.encoded_size, 40 if head else 10**9))] = (
                choose.choice((0, 1, 2, 127, 128, 255)) if head else choose.randrange(256)
            )
        file.write_bytes(data)
        encoded = data[frame.patch_offset : frame.patch_offset + frame.encoded_size]
        put(frame, sha256=sha256(encoded))

    rewrite_delta(folder, adjust)
