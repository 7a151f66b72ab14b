"""New content: zstd where that is smaller, stored where it is not. Needs no base."""

from ckpt.deltas.codecs.streams import Reader, join

REVERSIBLE = False


def encode(base: memoryview, target: memoryview, *, width: int, mantissa_bits: int = 0) -> bytes:
    return join([bytes(target)])


def decode(base: memoryview, encoded: memoryview, *, width: int, size: int) -> bytes:
    """The content itself; see :class:`ckpt.deltas.codecs.Codec`."""
    reader = Reader(encoded)
    data = reader.take(size)
    reader.end()
    return data
