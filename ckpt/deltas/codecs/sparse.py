"""Few elements changed: gap-coded positions and the differences of the values.

Streams after a u32 count of changes: gaps (one byte each: the unchanged elements before a change, 255 meaning that
the rest stands in the next stream), long gaps (u32: gap − 255), then the zigzag differences as byte planes.
"""

import struct

import numpy as np

from ckpt.deltas.codecs.integers import elements, from_planes, to_planes, unzigzag, zigzag
from ckpt.deltas.codecs.streams import Reader, join

REVERSIBLE = True
_COUNT = struct.Struct("<I")
_ESCAPE = 255


def encode(base: memoryview, target: memoryview, *, width: int, mantissa_bits: int = 0) -> bytes:
    old, new = elements(base, width), elements(target, width)
    positions = np.flatnonzero(old != new)
    gaps = np.diff(positions.astype(np.int32), prepend=np.int32(-1))
    gaps -= 1
    short = np.minimum(gaps, _ESCAPE).astype(np.uint8)
    long = (gaps[gaps >= _ESCAPE] - _ESCAPE).astype("<u4")
    differences = zigzag(new[positions] - old[positions])
    return _COUNT.pack(len(positions)) + join([short, long, *to_planes(differences)])


def decode(base: memoryview, encoded: memoryview, *, width: int, size: int) -> bytearray:
    """Base plus differences; see :class:`ckpt.deltas.codecs.Codec`."""
    if len(base) != size or len(encoded) < _COUNT.size:
        raise ValueError(f"a base of {len(base)} bytes for {size}")
    (count,) = _COUNT.unpack_from(encoded)
    if count * width > size:
        raise ValueError(f"{count} changes among {size // width} elements")
    reader = Reader(encoded[_COUNT.size :])
    positions = np.frombuffer(reader.take(count), np.uint8).astype(np.int64)
    escaped = np.flatnonzero(positions == _ESCAPE)
    positions[escaped] += np.frombuffer(reader.take(4 * len(escaped)), "<u4")
    differences = unzigzag(from_planes([reader.take(count) for _ in range(width)], width))
    reader.end()
    positions += 1
    np.cumsum(positions, out=positions)
    positions -= 1
    if count and positions[-1] * width >= size:
        raise ValueError("a change beyond the end")
    result = bytearray(base)
    elements(result, width)[positions] += differences
    return result
