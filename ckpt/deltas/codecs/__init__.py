"""How the bytes of a frame become fewer: one literal table, a codec a file.

A codec turns (base bytes, target bytes) into encoded bytes and back. ``contextual``, ``sparse`` and ``planes`` code the
difference of elements as integers modulo 2ʷ, so they are exact for any bits and could be subtracted again; ``moved``
puts rows from several places under one of them; ``bsdiff`` finds bytes that moved; ``raw`` needs no base; ``chain``
holds frames of the others. Adding a row is a compatible change: a reader that lacks the codec refuses the delta by
name.
"""

from importlib import import_module
from typing import Protocol

from ckpt.errors import FormatError


class Codec(Protocol):
    """What a module in the table offers. ``width`` is the size of an element in bytes: 1, 2, 4 or 8.

    ``mantissa_bits`` are the bits of an element below its exponent, 0 where it has none: what an encoder may use, and
    must write down where its decoder needs it.
    """

    REVERSIBLE: bool

    def encode(self, base: memoryview, target: memoryview, *, width: int, mantissa_bits: int = 0) -> bytes:
        """Encode; ``base`` and ``target`` are equally long for reversible codecs."""

    def decode(self, base: memoryview, encoded: memoryview, *, width: int, size: int) -> bytes | bytearray:
        """Exactly ``size`` bytes, or ``ValueError`` when the encoded bytes do not make sense."""


CODECS = {
    "contextual": "ckpt.deltas.codecs.contextual",
    "sparse": "ckpt.deltas.codecs.sparse",
    "planes": "ckpt.deltas.codecs.planes",
    "moved": "ckpt.deltas.codecs.moved",
    "bsdiff": "ckpt.deltas.codecs.bsdiff",
    "raw": "ckpt.deltas.codecs.raw",
    "chain": "ckpt.deltas.codecs.chain",
}


def codec(name: str) -> Codec:
    """The codec of that name.

    Raises:
        FormatError: the table has none.
    """
    if name not in CODECS:
        raise FormatError("delta.frame.codec", f"'{name[:40]}'", f"one of {', '.join(CODECS)}")
    return import_module(CODECS[name])
