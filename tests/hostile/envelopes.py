"""Right envelopes around whatever bytes."""

import zstandard

from ckpt.format.digests import sha256
from ckpt.format.wire import DELTA_MAGIC, body_of


def envelope(magic: bytes, body: bytes) -> bytes:
    """A right envelope around whatever bytes."""
    return magic + len(body).to_bytes(8, "little") + body + sha256(body)


def sealed(magic: bytes, message: bytes) -> bytes:
    """A right envelope around whatever bytes of a message."""
    return envelope(magic, b"\0" + message if magic == DELTA_MAGIC else message)


def message_in(data: bytes) -> bytes:
    """The bytes of the message in a file."""
    body = body_of(data)
    if not data.startswith(DELTA_MAGIC):
        return body
    return zstandard.decompress(body[1:]) if body[0] else body[1:]
