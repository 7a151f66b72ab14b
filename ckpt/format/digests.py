"""Hashes, and the one encoding that everything hashed goes through.

SHA-256 gives identity, CRC-32 finds accidents at memory speed; both are taken per chunk of 1 MiB. What is hashed
beyond raw bytes is first encoded by :class:`Encoder`: integers as u64 little-endian, strings and bytes with their
length before them, counts before lists, each digest under a domain of its own, so that no two different values
share an encoding. Byte-level page: ``docs/formats/checkpoint.md``.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from isal import isal_zlib

CHUNK_BYTES = 1 << 20
CRC32_BYTES = 4
SHA256_BYTES = 32
_STORAGE = b"treering/storage/v1\0"

Buffer = bytes | bytearray | memoryview


class Encoder:
    """Accumulates fields into one SHA-256 under a domain such as ``treering/storage/v1``."""

    __slots__ = ("_hash",)

    def __init__(self, domain: str) -> None:
        self._hash = hashlib.sha256(domain.encode("ascii") + b"\0")

    def integer(self, value: int) -> "Encoder":
        self._hash.update(value.to_bytes(8, "little"))
        return self

    def integers(self, values: Sequence[int]) -> "Encoder":
        self.integer(len(values))
        for value in values:
            self.integer(value)
        return self

    def string(self, value: str) -> "Encoder":
        return self.binary(value.encode("utf-8"))

    def binary(self, value: Buffer) -> "Encoder":
        self.integer(len(value))
        self._hash.update(value)
        return self

    def raw(self, value: Buffer) -> "Encoder":
        """Bytes whose length the format fixes: digests and tags."""
        self._hash.update(value)
        return self

    def digest(self) -> bytes:
        return self._hash.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The digests of one run of bytes, chunk by chunk.

    ``crc32`` holds 4 bytes a chunk, little-endian, and ``sha256`` 32, one after the other: bytes as they lie on disk,
    since a checkpoint of 100 GB has 100,000 of each and a reader of one tensor needs two.
    """

    size_bytes: int
    crc32: bytes
    sha256: bytes

    @property
    def count(self) -> int:
        """Chunks whose digests are here."""
        return len(self.crc32) // CRC32_BYTES

    def crc32_of(self, chunk: int) -> int:
        return int.from_bytes(self.crc32[chunk * CRC32_BYTES : (chunk + 1) * CRC32_BYTES], "little")

    def sha256_of(self, chunk: int) -> bytes:
        return self.sha256[chunk * SHA256_BYTES : (chunk + 1) * SHA256_BYTES]

    def digest(self) -> bytes:
        """SHA-256 over length and chunk digests; the CRCs stay outside."""
        sizes = self.size_bytes.to_bytes(8, "little") + self.count.to_bytes(8, "little")
        return sha256(_STORAGE + sizes + self.sha256)


def chunk_count(size_bytes: int) -> int:
    """Chunks of a run of ``size_bytes``: none for an empty one."""
    return -(-size_bytes // CHUNK_BYTES)


def chunk_range(chunk: int, size_bytes: int) -> tuple[int, int]:
    """First byte and end (excluded) of a chunk."""
    return chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, size_bytes)


def split(view: memoryview) -> Iterator[memoryview]:
    """The chunks of a run of bytes, without a copy."""
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def crc32(data: Buffer, before: int = 0) -> int:
    """CRC-32 of ``data``, or of what has the CRC-32 ``before`` and ``data`` after it."""
    return isal_zlib.crc32(data, before)


def sha256(data: Buffer) -> bytes:
    return hashlib.sha256(data).digest()


def both(data: Buffer) -> tuple[int, bytes]:
    """CRC-32 and SHA-256 of one chunk."""
    return crc32(data), sha256(data)


def chunks_of(pairs: Iterable[tuple[int, bytes]], *, size_bytes: int) -> Chunks:
    """Join the digests of single chunks."""
    crcs, hashes = [], []
    for crc, digest in pairs:
        crcs.append(crc.to_bytes(CRC32_BYTES, "little"))
        hashes.append(digest)
    return Chunks(size_bytes=size_bytes, crc32=b"".join(crcs), sha256=b"".join(hashes))


def text(digest: bytes) -> str:
    """``sha256:<64 hex>``, the form in which people and tags see a digest."""
    return f"sha256:{digest.hex()}"


def parse(value: str) -> bytes:
    """The 32 bytes of a digest in text form.

    Raises:
        ValueError: ``value`` is not ``sha256:`` and 64 hex digits.
    """
    kind, _, digits = value.partition(":")
    if kind != "sha256" or len(digits) != 2 * SHA256_BYTES or digits != digits.lower():
        raise ValueError(f"'{value}' is not a digest; expected 'sha256:' and 64 lower-case hex digits")
    return bytes.fromhex(digits)
