"""Public keys: 32 bytes out of a PEM file, and the id that a signature names a key by."""

from __future__ import annotations

import base64
import hashlib
import re

from treering_reader import ed25519
from treering_reader.faults import FaultError, demand

FILE_AT_MOST = 64 << 10
_SPKI = bytes.fromhex("302a300506032b6570032100")  # what stands before the 32 bytes of an Ed25519 key: RFC 8410
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def public_key(path: str) -> bytes:
    """The key in a PEM file.

    Raises:
        FaultError: ``key-file``: it cannot be read, or holds no Ed25519 public key, or one that proves nothing.
    """
    try:
        with open(path, "rb") as file:
            block = _BLOCK.search(file.read(FILE_AT_MOST))
        spki = base64.b64decode(b"".join(block[2].split()), validate=True) if block else b""
    except OSError as error:
        raise FaultError("key-file", f"{path!r}: {error.strerror}") from None
    except ValueError as error:
        raise FaultError("key-file", f"{path!r} is no base64: {error}") from None
    label = block[1].decode() if block else "nothing"
    demand(label == "PUBLIC KEY", "key-file", f"{path!r} holds {label}, expected PUBLIC KEY as PEM")
    key = spki[len(_SPKI) :]
    demand(spki == _SPKI + key and len(key) == 32, "key-file", f"{path!r} holds another kind of key than Ed25519")
    point = ed25519.decoded(key)
    if point is None or ed25519.of_small_order(point):
        raise FaultError("key-file", f"{path!r} holds no point, or one of small order, for which anybody can sign")
    return key


def key_id(key: bytes) -> bytes:
    """SHA-256 of the key's SPKI."""
    return hashlib.sha256(_SPKI + key).digest()
