"""The envelope around a body: magic, length, body, SHA-256 of the body."""

from __future__ import annotations

import hashlib
import struct

from treering_reader.faults import demand

CHECKPOINT, SIGNATURES = b"treering-ckpt\r\n", b"treering-sign\r\n"
VERSION = b"\x01"
BODY_AT_MOST = 512 << 20
AROUND = 16 + 8 + 32


def opened(content: bytes, magic: bytes) -> bytes:
    """The body, after its length and its checksum were compared.

    Raises:
        FaultError: ``truncated``, ``bad-magic``, ``unknown-version``, ``size-beyond-limit``, ``trailing-bytes`` or
            ``body-checksum``.
    """
    demand(len(content) >= AROUND, "truncated", f"{len(content)} bytes, an envelope has at least {AROUND}")
    demand(content[:15] == magic, "bad-magic", f"begins with {content[:15]!r}, expected {magic!r}")
    demand(content[15:16] == VERSION, "unknown-version", f"version byte {content[15]}, this reader knows 1")
    length = struct.unpack_from("<Q", content, 16)[0]
    demand(length <= BODY_AT_MOST, "size-beyond-limit", f"a body of {length} bytes, at most {BODY_AT_MOST} are allowed")
    demand(length >= len(content) - AROUND, "trailing-bytes", f"{len(content) - AROUND - length} bytes after the end")
    demand(
        length == len(content) - AROUND, "truncated", f"the body has {length} bytes, {len(content) - AROUND} are there"
    )
    body = content[24:-32]
    found = hashlib.sha256(body).digest()
    demand(found == content[-32:], "body-checksum", f"SHA-256 {found.hex()}, the file states {content[-32:].hex()}")
    return body
