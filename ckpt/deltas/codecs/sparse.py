"""Few elements changed: gap-coded positions and the differences of the values.

A gap counts the unchanged elements before a change. Its lowest bits are noise, which no model makes smaller: they are
packed as they are, and what is above them fits a byte. The sign of a difference is noise too, and its size mostly 1.

After a u8 ``shift`` and a u32 count of changes come streams: gaps ≫ shift (one byte each, 255 meaning that the rest
stands in the next stream), the rests (u32), the lowest ``shift`` bits of all gaps, the signs (a bit each, 1 is below
zero), and the sizes − 1 as byte planes.
"""

import struct
from typing import Final

import numpy as np

from ckpt.deltas.codecs.integers import Unsigned, elements, from_planes, magnitudes, signed, to_planes
from ckpt.deltas.codecs.streams import Reader, join, pack_bits, unpack_bits

REVERSIBLE = True
_HEAD = struct.Struct("<BI")
_ESCAPE: Final = 255
_MOST_SHIFT: Final = 24
_USUAL: Final = 32  # gaps of this mean are seldom beyond a byte


def encode(base: memoryview, target: memoryview, *, width: int, mantissa_bits: int = 0) -> bytes:
    old, new = elements(base, width), elements(target, width)
    positions = np.flatnonzero(old != new)
    gaps = np.diff(positions, prepend=-1)
    gaps -= 1
    shift = min((int(gaps.sum()) // max(len(gaps), 1) // _USUAL).bit_length(), _MOST_SHIFT)
    high = gaps >> shift
    short = np.minimum(high, _ESCAPE).astype(np.uint8)
    rests = (high[high >= _ESCAPE] - _ESCAPE).astype("<u4")
    below_zero, sizes = magnitudes(new[positions] - old[positions])
    sizes -= 1
    streams = [short, rests, pack_bits(gaps, shift), np.packbits(below_zero, bitorder="little"), *to_planes(sizes)]
    return _HEAD.pack(shift, len(positions)) + join(streams)


def decode(base: memoryview, encoded: memoryview, *, width: int, size: int) -> bytearray:
    """Base plus differences; see :class:`ckpt.deltas.codecs.Codec`."""
    if len(base) != size or len(encoded) < _HEAD.size:
        raise ValueError(f"a base of {len(base)} bytes for {size}")
    shift, count = _HEAD.unpack_from(encoded)
    if shift > _MOST_SHIFT or (count << shift) * width > size:
        raise ValueError(f"{count} changes among {size // width} elements, their gaps less {shift} bits")
    reader = Reader(encoded[_HEAD.size :])
    positions = np.frombuffer(reader.take(count), np.uint8).astype(np.int64)
    escaped = np.flatnonzero(positions == _ESCAPE)
    positions[escaped] += np.frombuffer(reader.take(4 * len(escaped)), "<u4")
    low = reader.take(-(-count * shift // 8))
    if shift:
        positions <<= shift
        positions |= unpack_bits(low, shift, count)
    differences = _differences(reader, count, width)
    reader.end()
    positions += 1
    np.cumsum(positions, out=positions)
    positions -= 1
    if count and positions[-1] * width >= size:
        raise ValueError("a change beyond the end")
    result = bytearray(base)
    elements(result, width)[positions] += differences
    return result


def _differences(reader: Reader, count: int, width: int) -> Unsigned:
    below_zero = np.unpackbits(np.frombuffer(reader.take(-(-count // 8)), np.uint8), count=count, bitorder="little")
    sizes = from_planes([reader.take(count) for _ in range(width)], width)
    sizes += 1
    return signed(below_zero.view(np.bool_), sizes)
