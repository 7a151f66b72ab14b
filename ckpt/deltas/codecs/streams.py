"""Byte streams inside a frame, each compressed by zstd where that is smaller, decoded never beyond a known size.

Layout of one stream: u8 form (0 stored, 1 zstd), u32 size, u32 stored size, the bytes. The size that a decoder will
accept is known to it before it looks, from the frame's own declaration.
"""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ckpt.format.packing import pack, unpack

LEVEL = 3
_HEAD = struct.Struct("<BII")
_STORED, _ZSTD = 0, 1


def join(streams: Sequence[bytes | NDArray[np.generic]]) -> bytes:
    """Streams one after the other."""
    return b"".join(_pack(stream if isinstance(stream, bytes) else stream.tobytes()) for stream in streams)


def _pack(stream: bytes) -> bytes:
    packed = pack(stream, level=LEVEL)
    form, data = (_ZSTD, packed) if len(packed) < len(stream) else (_STORED, stream)
    return _HEAD.pack(form, len(stream), len(data)) + data


def pack_bits(values: NDArray[np.int64], bits: int) -> NDArray[np.uint8]:
    """The lowest ``bits`` (at most 32) of each value, one after the other, from the lowest bit of each byte on."""
    low = values.astype("<u4").view(np.uint8).reshape(-1, 4)[:, : -(-bits // 8)]
    return np.packbits(np.unpackbits(low, axis=1, bitorder="little")[:, :bits], bitorder="little")


def unpack_bits(packed: bytes, bits: int, count: int) -> NDArray[np.int64]:
    """The inverse of :func:`pack_bits`, for ``count`` values."""
    found = np.unpackbits(np.frombuffer(packed, np.uint8), count=count * bits, bitorder="little")
    return found.reshape(count, bits) @ (1 << np.arange(bits))


class Reader:
    """Takes streams from a frame in order."""

    def __init__(self, encoded: memoryview) -> None:
        self._rest = encoded

    def take(self, size: int) -> bytes:
        """The next stream, which must hold ``size`` bytes.

        Raises:
            ValueError: it declares or holds another size, or is no zstd frame.
        """
        if len(self._rest) < _HEAD.size:
            raise ValueError("a stream is missing")
        form, declared, stored = _HEAD.unpack_from(self._rest)
        data = self._rest[_HEAD.size : _HEAD.size + stored]
        self._rest = self._rest[_HEAD.size + stored :]
        if declared != size or len(data) != stored:
            raise ValueError(f"a stream of {declared} bytes where {size} belong")
        if form == _STORED and stored == size:
            return bytes(data)
        if form == _ZSTD:
            return unpack(data, size=size)
        raise ValueError(f"a stream of unknown form {form} or size")

    def rest(self) -> memoryview:
        """What was not taken yet."""
        return self._rest

    def end(self) -> None:
        """Raise ``ValueError`` unless every byte was taken."""
        if len(self._rest):
            raise ValueError(f"{len(self._rest)} bytes after the last stream")
