"""Most elements changed a little: every difference, zigzag, as byte planes."""

from ckpt.deltas.codecs.integers import elements, from_planes, to_planes, unzigzag, zigzag
from ckpt.deltas.codecs.streams import Reader, join

REVERSIBLE = True


def encode(base: memoryview, target: memoryview, *, width: int, mantissa_bits: int = 0) -> bytes:
    return join(to_planes(zigzag(elements(target, width) - elements(base, width))))


def decode(base: memoryview, encoded: memoryview, *, width: int, size: int) -> bytes:
    """Base plus differences; see :class:`ckpt.deltas.codecs.Codec`."""
    if len(base) != size:
        raise ValueError(f"a base of {len(base)} bytes for {size}")
    old = elements(base, width)
    reader = Reader(encoded)
    differences = unzigzag(from_planes([reader.take(len(old)) for _ in range(width)], width))
    reader.end()
    return (old + differences).tobytes()
