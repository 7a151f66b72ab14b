"""Protobuf's wire format, read with the rule that one message has one encoding.

The parser walks the bytes once and refuses whatever an encoder of the canonical form would not have written: fields out
of order, fields at their default, varints with needless bytes, a packed list in two records, text that is not UTF-8.
What passes therefore serialises to the bytes that it was read from, and nothing has to be serialised to know it.

Source: https://protobuf.dev/programming-guides/encoding/ and *The envelope* in ``checkpoint.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from treering_reader.faults import FaultError, demand

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MESSAGES_AT_MOST = 1 << 22


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its name, its type, and whether it repeats; ``message`` is set for nested ones."""

    name: str
    type: str
    message: Message | None = None

    @property
    def repeats(self) -> bool:
        return self.message is not None


@dataclass(frozen=True, slots=True)
class Message:
    """A message type: what to build from its fields, and its fields by number."""

    build: Callable[..., Any]
    fields: dict[int, Field]


def parse(body: bytes, message: Message) -> Any:
    """The message that the bytes are the canonical encoding of.

    Raises:
        FaultError: ``malformed-protobuf``, ``unknown-field``, ``not-canonical`` or ``count-beyond-limit``.
    """
    if len(body) > 2 * MESSAGES_AT_MOST:  # none is shorter than two bytes
        _count(body, message)
    return _message(memoryview(body), message)


def _count(body: bytes, message: Message) -> int:
    """How many messages are inside, found by walking over keys and lengths; nothing is kept."""
    inner = {number: field.message for number, field in message.fields.items() if field.message is not None}
    deeper = {number for number, each in inner.items() if any(field.message for field in each.fields.values())}
    count = position = 0
    while position < len(body):
        key, position = body[position], position + 1
        if key > 0x7F:  # most keys are one byte, and are read here without a call
            key, position = _varint(body, position - 1)
        form = key & 7
        size, position = _varint(body, position) if form in (VARINT, LENGTH) else (0, position)
        if form == LENGTH and key >> 3 in inner:
            count += 1
            if key >> 3 in deeper:
                count += _count(body[position : position + size], inner[key >> 3])
            if count > MESSAGES_AT_MOST:
                raise FaultError("count-beyond-limit", f"more than {MESSAGES_AT_MOST} messages")
        position += size if form == LENGTH else _FIXED[form]
    return count


def _message(body: memoryview, message: Message) -> Any:
    values: dict[str, Any] = {}
    position, previous = 0, 0
    while position < len(body):
        key, position = _varint(body, position)
        number, wire_type = key >> 3, key & 7
        field = message.fields.get(number)
        if field is None or wire_type not in _WIRE_TYPES[field.type]:
            demand(number > 0 and wire_type in (VARINT, FIXED64, LENGTH, FIXED32), "malformed-protobuf", f"key {key}")
            raise FaultError("unknown-field", f"field {number} of wire type {wire_type}")
        in_order = number > previous or (number == previous and field.repeats)
        demand(in_order, "not-canonical", f"field {number} after field {previous}")
        value, position = _value(body, position, wire_type, field)
        if field.repeats:
            values.setdefault(field.name, []).append(value)
        else:
            values[field.name] = value
        previous = number
    return message.build(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _value(body: memoryview, position: int, wire_type: int, field: Field) -> tuple[Any, int]:
    if wire_type == FIXED32:
        raise FaultError("not-canonical", f"an element of {field.name!r} outside a packed list")
    number, position = _varint(body, position)
    if wire_type == VARINT:
        demand(
            not field.type.startswith("packed"), "not-canonical", f"an element of {field.name!r} outside a packed list"
        )
        demand(number != 0, "not-canonical", f"{field.name!r} is written although it is 0")
        demand(number < _LIMITS[field.type], "not-canonical", f"{field.name!r} is {number}, beyond {field.type}")
        return (number == 1 if field.type == "bool" else number), position
    end = position + number
    demand(end <= len(body), "malformed-protobuf", f"{field.name!r} of {number} bytes reaches beyond its message")
    content = body[position:end]
    if field.message is not None:
        return _message(content, field.message), end
    demand(number > 0, "not-canonical", f"{field.name!r} is written although it is empty")
    return _READ[field.type](content, field.name), end


def _varint(body: memoryview | bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(position, min(position + 10, len(body))):
        byte = body[place]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            demand(byte > 0 or shift == 7, "not-canonical", "a number in needless bytes")
            demand(value < 1 << 64, "malformed-protobuf", "a number beyond 64 bits")
            return value, place + 1
    raise FaultError("malformed-protobuf", "a number that does not end, or has more than ten bytes")


def _text(content: memoryview, name: str) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise FaultError("malformed-protobuf", f"{name!r} is not UTF-8: {error}") from None


def _packed_varints(content: memoryview, name: str) -> tuple[int, ...]:
    numbers, position = [], 0
    while position < len(content):
        number, position = _varint(content, position)
        numbers.append(number)
    return tuple(numbers)


def _packed_fixed32(content: memoryview, name: str) -> tuple[int, ...]:
    demand(len(content) % 4 == 0, "malformed-protobuf", f"{name!r} has {len(content)} bytes, no multiple of 4")
    return struct.unpack(f"<{len(content) // 4}I", content)


_READ: dict[str, Callable[[memoryview, str], Any]] = {
    "bytes": lambda content, name: bytes(content),
    "string": _text,
    "packed uint64": _packed_varints,
    "packed fixed32": _packed_fixed32,
}
_FIXED = {VARINT: 0, FIXED64: 8, 3: 0, 4: 0, FIXED32: 4, 6: 0, 7: 0}  # bytes after a key, by wire type
_LIMITS = {"uint32": 1 << 32, "uint64": 1 << 64, "enum": 1 << 64, "bool": 2}
_WIRE_TYPES = {
    **dict.fromkeys(_LIMITS, (VARINT,)),
    "bytes": (LENGTH,),
    "string": (LENGTH,),
    "message": (LENGTH,),
    "packed uint64": (LENGTH, VARINT),
    "packed fixed32": (LENGTH, FIXED32),
}
