"""What encoder and decoder lay out in memory, and the numbers that they share.

Of a token a context keeps how often it was met, its share of ``WHOLE`` and the sum of the shares before it; of itself
the tokens it has met, and the number at which its shares are counted anew. ``Quick`` holds the first token to look at
for each 16 slots; an encoder's is empty.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CLASSES = 256  # of magnitude: the exponent of the base
KINDS = 2  # contexts of a class: differences, gaps
GAP_TOKENS = 64
LAST_GAP = 63  # none changes any more
NEAR = 6  # tokens for a difference that is the last frequent one or next to it, of either sign

PRECISION = 14  # bits of a token's share
WHOLE = 1 << PRECISION
LOWEST = 1 << 16  # a coder's state stays in [2**16, 2**32)

COUNT, SHARE, START = range(3)
MET, DUE = range(2)
Table = NDArray[np.uint32]  # [context, token, 3]
Turns = NDArray[np.int64]  # [context, 2]
Quick = NDArray[np.uint16]  # [context, slot // 16]

# Where a decoder is: the coder's state for this token and the next one, words and raw bits that were read.
STATE, NEXT, WORD, BIT = range(4)
RAW_BYTES = 8  # that lie after the raw bits and are none of them, so that several may be read at once


class Model(NamedTuple):
    """How elements are read: what a frame's head says, and what follows from the width."""

    width: int
    mantissa_bits: int
    first: int  # every element of the classes from here …
    end: int  # … to here is coded
    steps: int
    loss: int


def token_count(width: int) -> int:
    """Zero, two signs of each size class, and those for what is near a frequent difference."""
    return NEAR + 1 + 2 * (16 * width - 2)


def tables(width: int) -> tuple[Table, Turns]:
    """Tables in which nothing was met yet; pages are touched as contexts come into use."""
    columns = max(token_count(width), GAP_TOKENS)
    return np.zeros((KINDS * CLASSES, columns, 3), np.uint32), np.zeros((KINDS * CLASSES, 2), np.int64)


def lookup() -> Quick:
    """What a decoder has beside its tables."""
    return np.zeros((KINDS * CLASSES, WHOLE >> 4), np.uint16)


def memory() -> NDArray[np.int64]:
    """Of each class: the frequent difference, what may become it, the gap that is open (-1: none yet), its length."""
    return np.repeat(np.array([[-2], [-2], [-1], [0]]), CLASSES, axis=1)
