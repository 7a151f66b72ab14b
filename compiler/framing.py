"""The outside of ``program.pb``: magic, length, body, digest, and a look at the body before it is parsed.

    8 bytes magic ‖ u64 length, little-endian ‖ body ‖ 32 bytes SHA-256 of the body

``scan`` walks the body's wire format against the schema without building messages: an unknown field, a wrong wire type,
a truncated field or too many messages end it with the path to the fault. It costs time in proportion to the fields
seen, so a file that would cost much memory to parse is refused first.
"""

import hashlib
from collections import Counter
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from compiler.errors import InvalidProgramError
from compiler.proto import program_pb2 as pb

MAGIC: Final = b"TRPROGv1"
MAX_BODY_BYTES: Final = 64 * 2**20
MAX_MESSAGES: Final = 500_000

_HEADER_BYTES: Final = len(MAGIC) + 8
_DIGEST_BYTES: Final = 32
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES: Final = 10
_LENGTH_TYPES: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)


def frame(message: pb.Program) -> bytes:
    """The bytes of ``program.pb``."""
    body = message.SerializeToString(deterministic=True)
    return MAGIC + len(body).to_bytes(8, "little") + body + hashlib.sha256(body).digest()


def unframe(data: bytes) -> pb.Program:
    """Read ``program.pb``.

    Raises:
        InvalidProgramError: At the first rule broken, before anything is parsed if the rule allows.
    """
    body = _body(data)
    scan(body)
    try:
        message = pb.Program.FromString(body)
    except DecodeError as error:
        raise InvalidProgramError(path="program", found=str(error), expected="a protobuf Program") from error
    if message.SerializeToString(deterministic=True) != body:
        raise InvalidProgramError(path="program", found="another encoding of it", expected="the canonical encoding")
    return message


def _body(data: bytes) -> bytes:
    if data[: len(MAGIC)] != MAGIC:
        raise InvalidProgramError(path="header.magic", found=repr(data[: len(MAGIC)]), expected=repr(MAGIC))
    length = int.from_bytes(data[len(MAGIC) : _HEADER_BYTES], "little")
    if length > MAX_BODY_BYTES:
        raise InvalidProgramError(path="header.length", found=f"{length} bytes", expected=f"≤ {MAX_BODY_BYTES}")
    if len(data) != _HEADER_BYTES + length + _DIGEST_BYTES:
        raise InvalidProgramError(
            path="header.length",
            found=f"a file of {len(data)} bytes",
            expected=f"{_HEADER_BYTES + length + _DIGEST_BYTES} bytes",
        )
    body, digest = data[_HEADER_BYTES:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise InvalidProgramError(path="trailer.sha256", found=hashlib.sha256(body).hexdigest(), expected=digest.hex())
    return body


def scan(body: bytes) -> None:
    """Walk ``body`` as a ``Program`` and refuse what the schema does not say."""
    _Scanner(body).message(pb.Program.DESCRIPTOR, start=0, end=len(body), path="program")


class _Scanner:
    """A position-free walker over one body; counts messages across all levels."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._messages = 0

    def message(self, descriptor: Any, *, start: int, end: int, path: str) -> None:
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            raise InvalidProgramError(path=path, found=f"more than {MAX_MESSAGES} messages", expected="fewer")
        seen: Counter[str] = Counter()
        while start < end:
            tag, start = self._varint(start, end, path)
            field = descriptor.fields_by_number.get(tag >> 3)
            if field is None:
                raise InvalidProgramError(path=path, found=f"unknown field {tag >> 3}", expected="a known field")
            inner = f"{path}.{field.name}" + (f"[{seen[field.name]}]" if field.is_repeated else "")
            seen[field.name] += 1
            start = self._value(field, tag & 7, start=start, end=end, path=inner)

    def _value(self, field: FieldDescriptor, wire: int, *, start: int, end: int, path: str) -> int:
        if wire != _wire_type(field):
            raise InvalidProgramError(path=path, found=f"wire type {wire}", expected=f"{_wire_type(field)}")
        if wire == _VARINT:
            return self._varint(start, end, path)[1]
        if wire == _FIXED64:
            stop = start + 8
        else:
            length, start = self._varint(start, end, path)
            stop = start + length
        if stop > end:
            raise InvalidProgramError(path=path, found=f"{end - start} bytes left", expected=f"{stop - start}")
        if field.message_type is not None:
            self.message(field.message_type, start=start, end=stop, path=path)
        return stop

    def _varint(self, start: int, end: int, path: str) -> tuple[int, int]:
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            if start + index >= end:
                raise InvalidProgramError(path=path, found="the end of the data", expected="the rest of a number")
            byte = self._body[start + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value, start + index + 1
        raise InvalidProgramError(path=path, found="a number of more than 10 bytes", expected="at most 64 bits")


def _wire_type(field: FieldDescriptor) -> int:
    if field.type in _LENGTH_TYPES or field.is_packed:
        return _LENGTH
    return _FIXED64 if field.type == FieldDescriptor.TYPE_DOUBLE else _VARINT
