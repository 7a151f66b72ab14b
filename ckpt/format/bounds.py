"""How many records a message may hold, counted before it is parsed.

A record of two bytes on disk becomes a hundred in memory, so the size of a file alone does not bound what parsing it
costs. The count walks over tags and lengths and touches nothing else; bodies too short to hold too many records are
not walked at all.
"""

from typing import Any

from google.protobuf.message import Message

from ckpt.errors import FormatError

MAX_RECORDS = 1 << 22  # storages, tensors, nodes, frames and entries together: about 1 GiB when all are there
_FIXED_BYTES = {1: 8, 5: 4}  # by wire type; groups (3, 4) do not occur in this format
_SMALLEST_RECORD = 2


def check_records(body: bytes, message: Message, where: str) -> None:
    """Refuse a body with more than ``MAX_RECORDS`` messages inside it.

    Raises:
        FormatError: it has more, or is no protobuf message.
    """
    if len(body) <= _SMALLEST_RECORD * MAX_RECORDS:
        return
    try:
        count = _count(body, 0, len(body), message.DESCRIPTOR, MAX_RECORDS)
    except LookupError:
        raise FormatError(where, "fields cut short or grouped", f"a message {message.DESCRIPTOR.full_name}") from None
    if count > MAX_RECORDS:
        raise FormatError(where, f"more than {MAX_RECORDS} records", "at most as many")


def _count(body: bytes, position: int, end: int, kind: Any, most: int) -> int:
    """Messages below one message, found by walking it; stops beyond ``most``."""
    messages = {field.number: field.message_type for field in kind.fields if field.message_type is not None}
    deep = {number for number, inner in messages.items() if any(field.message_type for field in inner.fields)}
    count = 0
    while position < end and count <= most:
        tag, position = body[position], position + 1
        if tag > 0x7F:  # numbers of one byte are read here, without a call: nearly all of them are
            tag, position = _varint(body, position - 1)
        number, form = tag >> 3, tag & 7
        if form == 0:
            _, position = _varint(body, position)
        elif form == 2:
            size, position = body[position], position + 1
            if size > 0x7F:
                size, position = _varint(body, position - 1)
            count += number in messages
            if number in deep:
                count += _count(body, position, min(position + size, end), messages[number], most - count)
            position += size
        else:
            position += _FIXED_BYTES[form]
    return count


def _varint(body: bytes, position: int) -> tuple[int, int]:
    byte = body[position]
    value = shift = 0
    while byte > 0x7F:
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if shift > 63:
            raise LookupError("a varint longer than ten bytes")
        byte = body[position]
    return value | byte << shift, position + 1
