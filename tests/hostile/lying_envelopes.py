"""Bytes of ``manifest.pb``, ``delta.pb`` and ``signatures.pb`` that are no canonical message in its envelope."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import zstandard
from google.protobuf.message import Message

import ckpt
from ckpt.format.wire import DELTA_MAGIC
from tests.hostile.edits import Edit, put
from tests.hostile.envelopes import envelope, message_in, sealed
from tests.hostile.lies import Lie

UNKNOWN = b"\x78\x01"  # field 15, which no message has
VERSION = b"\x08\x01"  # how manifests and deltas begin


def body(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Change the message in a file and make the envelope right again."""

    def tell(file: Path) -> None:
        data = file.read_bytes()
        file.write_bytes(sealed(data[:16], change(message_in(data))))

    return tell


def packed(change: Callable[[bytes], bytes], *, form: bytes = b"\1") -> Callable[[Path], object]:
    """Change the message of a delta, put it in its envelope as something packed, and make that right again."""

    def tell(file: Path) -> None:
        file.write_bytes(envelope(DELTA_MAGIC, form + change(message_in(file.read_bytes()))))

    return tell


def patched(at: int, new: bytes) -> Callable[[Path], object]:
    """Other bytes in the file at a place, counted from its end where that is below 0."""

    def tell(file: Path) -> None:
        data = bytearray(file.read_bytes())
        start = at % len(data)
        data[start : start + len(new)] = new
        file.write_bytes(data)

    return tell


def _grown(by: int) -> Callable[[Path], object]:
    return lambda file: os.truncate(file, file.stat().st_size + by)


PACKINGS: dict[str, Lie] = {
    "no zstd frame": Lie(packed(bytes), "no zstd frame"),
    "another form": Lie(packed(zstandard.compress, form=b"\2"), "a body of form"),
    "no form": Lie(packed(lambda _: b"", form=b""), "a body of form"),
    "no bytes": Lie(packed(lambda _: b""), "no zstd frame"),
    "a frame that states no size": Lie(
        packed(zstandard.ZstdCompressor(write_content_size=False).compress), "does not state its size"
    ),
    "a frame that states a terabyte": Lie(packed(lambda data: _stating(1 << 40, data)), "would become 1099511627776"),
    "a frame that states a byte more": Lie(packed(lambda data: _stating(len(data) + 1, data)), "a broken zstd frame"),
    "512 MiB of zeros": Lie(packed(lambda _: zstandard.compress(bytes(512 << 20))), "would become 536870912"),
    "a frame cut short": Lie(packed(lambda data: zstandard.compress(data)[:-1]), "a broken zstd frame"),
    "two frames": Lie(packed(lambda data: 2 * zstandard.compress(data)), "a broken zstd frame"),
    "bytes after the frame": Lie(packed(lambda data: zstandard.compress(data) + b"hidden"), "a broken zstd frame"),
}


def _stating(size: int, data: bytes) -> bytes:
    """A zstd frame of one block as it is (RFC 8878) that says it holds so many bytes."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + (len(data) << 3 | 1).to_bytes(3, "little") + data


ENVELOPES: dict[str, Lie] = {
    "no bytes": Lie(lambda file: os.truncate(file, 0), "found 0 bytes beginning b''"),
    "a magic alone": Lie(lambda file: os.truncate(file, 16), "found 16 bytes beginning"),
    "a byte less": Lie(_grown(-1), "bytes as it states"),
    "a byte more": Lie(_grown(1), "bytes as it states"),
    "a terabyte of nothing after it": Lie(lambda file: os.truncate(file, 1 << 40), "expected at most"),
    "the magic of another format": Lie(patched(0, b"\x89PNG\r\n\x1a\n"), "expected the magic"),
    "a later version of the magic": Lie(patched(15, b"\x02"), "found version 2, expected version 1", ckpt.VersionError),
    "a length of nothing": Lie(patched(16, bytes(8)), "expected 0 bytes as it states"),
    "a length of 2^63": Lie(patched(16, (1 << 63).to_bytes(8, "little")), "expected 9223372036854775808 bytes"),
    "a length of 2^64 - 1": Lie(patched(16, b"\xff" * 8), "expected 18446744073709551615 bytes"),
    "another checksum": Lie(patched(-32, b"\0" * 32), f"expected {'0' * 64}"),
}

BODIES: dict[str, Lie] = {
    "an unknown field": Lie(body(lambda data: data + UNKNOWN), "unknown fields or another encoding"),
    "an unknown field before all": Lie(body(lambda data: UNKNOWN + data), "unknown fields or another encoding"),
    "an empty group": Lie(body(lambda data: data + b"\x7b\x7c"), "unknown fields or another encoding"),
    "a group without end": Lie(body(lambda data: data + b"\x7b"), "found no protobuf message"),
    "groups in groups": Lie(body(lambda data: data + b"\x7b" * 10**4 + b"\x7c" * 10**4), "found no protobuf message"),
    "the field 0": Lie(body(lambda data: data + b"\0\0"), "found no protobuf message"),
    "a wire type of 7": Lie(body(lambda data: data + b"\x7f"), "found no protobuf message"),
    "a message longer than the body": Lie(body(lambda data: data + b"\x22\x7f"), "found no protobuf message"),
    "a message of 2^64 - 1 bytes": Lie(
        body(lambda data: data + b"\x22" + b"\xff" * 9 + b"\x01"), "no protobuf message"
    ),
    "an endless varint": Lie(body(lambda data: data + b"\x22" + b"\x80" * 1000), "found no protobuf message"),
}

ENCODINGS: dict[str, Lie] = {
    "a version in two bytes": Lie(body(lambda data: b"\x08\x81\x00" + data[2:]), "another encoding"),
    "a version twice": Lie(body(lambda data: VERSION + data), "another encoding"),
    "a version after all": Lie(body(lambda data: data[2:] + data[:2]), "another encoding"),
    "a version that wraps round at 2^32": Lie(
        body(lambda data: b"\x08\x81\x80\x80\x80\x10" + data[2:]), "another encoding"
    ),
    "no body": Lie(body(lambda data: b""), "found 0, expected 1", ckpt.VersionError),
}


def unknown_inside(*places: str) -> dict[str, Edit]:
    """For each kind of message inside another one, an edit that hides an unknown field there.

    Args:
        places: Paths from the outermost message, ``storages.frames``; of a list, its first message is meant.
    """

    return {f"an unknown field in {place}": _hiding(place.split(".")) for place in places}


def _hiding(names: list[str]) -> Edit:
    return lambda message: next(_reached(message, names)).MergeFromString(UNKNOWN)


def _reached(message: Message, names: list[str]) -> Iterator[Message]:
    if not names:
        yield message
        return
    found = getattr(message, names[0])
    for item in [found] if isinstance(found, Message) else found:
        yield from _reached(item, names[1:])


def negative(name: str) -> Edit:
    """An enumerator of −1 in the first message of a list."""
    field = "kind" if name == "state" else "action"
    return lambda message: put(getattr(message, name)[0], **{field: -1})
