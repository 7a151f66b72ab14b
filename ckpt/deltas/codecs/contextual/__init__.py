"""Floats that training moved: each difference coded by what its base says of it.

Whether a weight changes, and by how many units in the last place, follows from its magnitude: steps are about equally
large everywhere, units are not. So each exponent of the base is a context with tables of its own. Where hardly any
element of a context changes, runs of unchanged ones are coded (*gaps*, counted within the context); where many do,
every element. A number is coded as its size class and raw bits below it; one that comes again and again, such as
the first step of Adam, which is the learning rate for every weight, as itself. Differences are taken from the base, or
from what weight decay alone would have made of it.

Layout: u8 bits below the exponent, u8 first and u16 end of the classes of which every element is coded, u8 steps and
u64 loss of the decay (0 and 0 for none), u32 words of rANS, then these and the raw bits, lowest first.
"""

import struct
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckpt.deltas.codecs.contextual.decay import LOSS_BITS, fitted
from ckpt.deltas.codecs.contextual.layout import (
    BIT,
    CLASSES,
    LOWEST,
    NEXT,
    RAW_BYTES,
    STATE,
    WORD,
    Model,
    lookup,
    memory,
    tables,
    token_count,
)
from ckpt.deltas.codecs.contextual.machine import call
from ckpt.deltas.codecs.integers import Unsigned, elements

REVERSIBLE = True
_HEAD = struct.Struct("<BBHBQI")
_KEPT_EVENTS = 1 << 21  # 22 MB
_OFTEN = 8  # every element is coded where at least one in so many changes


def encode(base: memoryview, target: memoryview, *, width: int, mantissa_bits: int = 0) -> bytes:
    """See :class:`ckpt.deltas.codecs.Codec`; elements of 8 bytes are coded as two of 4."""
    old, new, whole, width = *_narrow(base, target, width), width, min(width, 4)
    below = mantissa_bits if 0 < mantissa_bits < 8 * width else 8 * width - 1  # without an exponent: one class
    steps, loss = 0, 0
    if width == 4 and below == 23:
        loss, steps = fitted(old, new)
    counts = np.zeros((2, CLASSES), np.int64)
    kind = old.dtype.str[1:]
    elements_of = (old, new, old.size)
    call(f"count-{kind}", *elements_of, width, below, 0, 0, steps, loss, counts)
    met, moved = counts
    often = np.flatnonzero(moved * _OFTEN > met)
    first, end = (int(often[0]), int(often[-1]) + 1) if len(often) else (0, 0)
    model = Model(width=width, mantissa_bits=below, first=first, end=end, steps=steps, loss=loss)
    room = 2 * old.size + CLASSES  # of which pages are touched as they are used
    *events, words = _scratch.arrays(room)
    count = call(f"events-{kind}", *elements_of, *model, *events, room, memory())
    table, turns = tables(width)
    raw_size = call("model", *events, count, table, turns, token_count(width), table.shape[1])
    starts, shares, raw, _ = events  # now
    begins = call("write", starts, shares, count, words, count + 4)
    head = _HEAD.pack(below if whole == width else 8 * whole - 1, first, end, steps, loss, count + 4 - begins)
    return head + words[begins : count + 4].tobytes() + raw.view(np.uint8)[:raw_size].tobytes()


class _Scratch(local):
    """A thread's memory for the events of a frame and their words: fresh pages each time would take a fifth of it."""

    def __init__(self) -> None:
        self._kept = self._fresh(0)

    def arrays(self, room: int) -> tuple[NDArray[Any], ...]:
        """Contexts, tokens, raw numbers, their bits; words."""
        if room > _KEPT_EVENTS:
            return self._fresh(room)
        if room > len(self._kept[0]):
            self._kept = self._fresh(room)
        return self._kept

    @staticmethod
    def _fresh(room: int) -> tuple[NDArray[Any], ...]:
        return *(np.empty(room, dtype) for dtype in ("u2", "u2", "<u4", "u1")), np.empty(room + 4, "<u2")


_scratch = _Scratch()


def decode(base: memoryview, encoded: memoryview, *, width: int, size: int) -> bytearray:
    """Base plus differences; see :class:`ckpt.deltas.codecs.Codec`."""
    if len(base) != size or len(encoded) < _HEAD.size:
        raise ValueError(f"a base of {len(base)} bytes for {size}")
    result, whole = bytearray(base), width
    old, new, width = *_narrow(base, memoryview(result), width), min(width, 4)
    below, first, end, steps, loss, count = _HEAD.unpack_from(encoded)
    if not max(0, 8 * whole - 9) <= below < 8 * whole or (whole > width and below != 8 * whole - 1):
        raise ValueError(f"classes above bit {below}")
    if first > end or end > CLASSES:
        raise ValueError(f"classes {first} to {end}")
    if (steps > 0) != (loss > 0) or (steps and (width != 4 or below != 23)) or loss >> (LOSS_BITS - 1):
        raise ValueError(f"a decay of {loss} in {steps} steps")
    place = _HEAD.size + 2 * count
    if count < 4 or place > len(encoded):
        raise ValueError(f"{count} words in {len(encoded)} bytes")
    words = np.frombuffer(encoded, "<u2", count, _HEAD.size)
    raw = np.concatenate([np.frombuffer(encoded[place:], np.uint8), np.zeros(RAW_BYTES, np.uint8)])
    model = Model(width=width, mantissa_bits=min(below, 8 * width - 1), first=first, end=end, steps=steps, loss=loss)
    at = np.array([int(words[0]) | int(words[1]) << 16, int(words[2]) | int(words[3]) << 16, 4, 0])
    table, turns = tables(width)
    call(
        f"decode-{old.dtype.str[1:]}", old, new, old.size, *model,
        words, words.size, raw, raw.size, table, turns, lookup(), table.shape[1], at, memory(),
    )  # fmt: skip
    left = 8 * (len(encoded) - place) - int(at[BIT])
    ended = at[WORD] == count and at[STATE] == at[NEXT] == LOWEST
    if not ended or not 0 <= left < 8 or (left and encoded[-1] >> (8 - left)):
        raise ValueError(f"{at[WORD]} of {count} words and all but {left} raw bits lead to no end")
    return result


def _narrow(base: memoryview, target: memoryview, width: int) -> tuple[Unsigned, Unsigned]:
    elements(base, width)  # refuses what is no whole number of them
    return elements(base, min(width, 4)), elements(target, min(width, 4))
