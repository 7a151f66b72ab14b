"""The loops of the codec, compiled: over elements, over events, over tokens; at the end, as functions of pointers."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import carray  # type: ignore[attr-defined, unused-ignore]
from numpy.typing import NDArray

from ckpt.deltas.codecs.contextual.coder import learn, prepare, write_tokens
from ckpt.deltas.codecs.contextual.compiling import Int, compiled
from ckpt.deltas.codecs.contextual.decay import LOSS_BITS
from ckpt.deltas.codecs.contextual.layout import (
    BIT,
    CLASSES,
    GAP_TOKENS,
    KINDS,
    LAST_GAP,
    LOWEST,
    NEAR,
    NEXT,
    PRECISION,
    RAW_BYTES,
    SHARE,
    START,
    STATE,
    WHOLE,
    WORD,
    Model,
    Quick,
    Table,
    Turns,
)
from ckpt.deltas.codecs.contextual.layout import (
    token_count as _token_count,
)
from ckpt.deltas.codecs.integers import Unsigned

_LOG2 = np.array([max(value.bit_length() - 1, 0) for value in range(256)], np.uint8)
_CLASS_OF = np.array([n if n < 4 else 2 * _LOG2[n] + (n >> (_LOG2[n] - 1) & 1) for n in range(256)], np.uint8)
_BELOW = np.array([0 if n < 4 else _LOG2[n] - 1 for n in range(256)], np.uint8)
_WINDOWS, _WINDOW = 64, 512  # at most so many elements are looked at to tell which classes change often
_SIGN = 1 << 31
_HIDDEN = 1 << 23

token_count = compiled(_token_count)


@compiled
def decayed(bits: Int, loss: Int, steps: Int) -> Int:
    """The bits of a float32 after its decay; infinities, NaNs and the smallest numbers stay as they are."""
    exponent = (bits >> 23) & 0xFF
    if exponent == 0xFF or exponent < 2:
        return bits
    significand = (bits & (_HIDDEN - 1)) | _HIDDEN
    left = significand - steps * ((significand * loss + (1 << (LOSS_BITS - 1))) >> LOSS_BITS)
    if left < _HIDDEN:  # a power of two was crossed: from here on units are half as large
        exponent -= 1
        if steps == 1:
            left = (significand * ((1 << LOSS_BITS) - loss) + (1 << (LOSS_BITS - 2))) >> (LOSS_BITS - 1)
        else:
            left *= 2
        if left < _HIDDEN:
            return bits
    return (bits & _SIGN) | ((exponent << 23) + (left - _HIDDEN))


@compiled
def _size_class(number: Int) -> tuple[Int, Int]:
    """0, 1, 2, 3, then two classes for each power of two; and how many raw bits tell the number within its class."""
    if number < 256:
        return np.int64(_CLASS_OF[number]), np.int64(_BELOW[number])
    shifted = 0
    while number >> shifted > 0xFF:
        shifted += 8
    power = shifted + np.int64(_LOG2[number >> shifted])
    return 2 * power + ((number >> (power - 1)) & 1), power - 1


@compiled
def _least_of(size_class: Int) -> tuple[Int, Int]:
    """The smallest number of a class, and its raw bits."""
    if size_class < 4:
        return size_class, 0
    power = size_class >> 1
    return (2 + (size_class & 1)) << (power - 1), power - 1


@compiled
def _expected(bits: Int, model: Model) -> Int:
    return decayed(bits, model.loss, model.steps) if model.steps else bits


@compiled
def _count(old: Unsigned, new: Unsigned, model: Model, met: NDArray[np.int64], moved: NDArray[np.int64]) -> None:
    """Elements of each class, and those of them that are not as expected, in windows spread over a frame."""
    magnitude = (1 << (8 * model.width - 1)) - 1
    step = max(1, old.size // (_WINDOWS * _WINDOW)) * _WINDOW
    for start in range(0, old.size, step):
        for index in range(start, min(start + _WINDOW, old.size)):
            bits = np.int64(old[index])
            of = (bits & magnitude) >> model.mantissa_bits
            met[of] += 1
            moved[of] += _expected(bits, model) != np.int64(new[index])


@compiled
def _events(
    old: Unsigned,
    new: Unsigned,
    model: Model,
    contexts: NDArray[np.uint16],
    tokens: NDArray[np.uint16],
    raw: NDArray[np.uint32],
    raw_bits: NDArray[np.uint8],
    memory: NDArray[np.int64],
) -> int:
    """What the decoder will meet, in its order; returns how many."""
    modulus = 1 << (8 * model.width)
    magnitude = (modulus >> 1) - 1
    frequent, candidate, gap, run = memory[0], memory[1], memory[2], memory[3]
    count = 0
    for index in range(old.size):
        bits = np.int64(old[index])
        of = (bits & magnitude) >> model.mantissa_bits
        if gap[of] >= 0 and bits == np.int64(new[index]) and not model.steps:  # what nearly all of a rare class are
            run[of] += 1
            continue
        difference = (np.int64(new[index]) - _expected(bits, model)) & (modulus - 1)
        negative = difference > modulus >> 1
        size = modulus - difference if negative else difference
        rare = of < model.first or of >= model.end
        if rare:
            if gap[of] < 0:
                contexts[count] = KINDS * of + 1
                gap[of], run[of] = count, 0
                count += 1
            if size == 0:
                run[of] += 1
                continue
            place = gap[of]
            token, bits_below = _size_class(run[of])
            tokens[place] = token
            raw[place] = run[of] & ((1 << bits_below) - 1)
            raw_bits[place] = bits_below
        contexts[count] = KINDS * of
        raw[count] = raw_bits[count] = 0
        if size < 4:  # its own class; without a branch, since nothing tells whether it is 0
            tokens[count] = NEAR + 2 * size + negative - (size > 0)
        elif -1 <= size - frequent[of] <= 1:
            tokens[count] = 2 * (size - frequent[of] + 1) + negative
        else:
            token, bits_below = _size_class(size)
            tokens[count] = NEAR + 2 * token - 1 + negative
            raw[count] = size & ((1 << bits_below) - 1)
            raw_bits[count] = bits_below
            if -1 <= size - candidate[of] <= 1:
                frequent[of] = size
            candidate[of] = size
        count += 1
        if rare:
            gap[of] = -1
    for place in gap:
        if place >= 0:  # of a class that is met no more; the same for each: no raw bits
            tokens[place] = LAST_GAP
            raw[place] = raw_bits[place] = 0
    return count


@compiled
def _model(
    contexts: NDArray[np.uint16],
    tokens: NDArray[np.uint16],
    raw_numbers: NDArray[np.uint32],
    raw_bits: NDArray[np.uint8],
    table: Table,
    turns: Turns,
    quick: Quick,
    most: int,
    raw: NDArray[np.uint8],
) -> int:
    """Put the share of each token, when its turn comes, in its place, and where it starts in its context's.

    Raw bits are written on the way; returns their bytes. ``raw`` may be the memory of ``raw_numbers``, which have more.
    """
    held, held_bits, size = np.uint64(0), np.int64(0), 0
    for index in range(contexts.size):
        context, token = np.int64(contexts[index]), np.int64(tokens[index])
        count = GAP_TOKENS if context & 1 else most
        held |= np.uint64(raw_numbers[index]) << np.uint64(held_bits)
        held_bits += np.int64(raw_bits[index])
        prepare(table, turns, quick, context, count, KINDS)
        contexts[index] = table[context, token, START]
        tokens[index] = table[context, token, SHARE]
        learn(table, turns, quick, context, token, count)
        if held_bits >= 32:
            for byte in range(4):
                raw[size + byte] = (held >> np.uint64(8 * byte)) & np.uint64(0xFF)
            held >>= np.uint64(32)
            held_bits -= 32
            size += 4
    while held_bits > 0:
        raw[size] = held & np.uint64(0xFF)
        held >>= np.uint64(8)
        held_bits -= 8
        size += 1
    return size


@compiled
def _read_token(
    state: Int,
    word: Int,
    words: NDArray[np.uint16],
    table: Table,
    turns: Turns,
    quick: Quick,
    context: Int,
    tokens: Int,
) -> tuple[Int, Int, Int]:
    """The next token, the coder's state after it and the words read; beyond their end words are 0."""
    prepare(table, turns, quick, context, tokens, KINDS)
    slot = state & (WHOLE - 1)
    token = np.int64(quick[context, slot >> 4])
    while slot >= np.int64(table[context, token, START]) + np.int64(table[context, token, SHARE]):
        token += 1
    state = np.int64(table[context, token, SHARE]) * (state >> PRECISION) + slot
    state -= np.int64(table[context, token, START])
    if state < LOWEST:
        state <<= 16
        if word < words.size:
            state |= np.int64(words[word])
        word += 1
    learn(table, turns, quick, context, token, tokens)
    return token, state, word


@compiled
def _read_number(bit: Int, raw: NDArray[np.uint8], size_class: Int) -> tuple[Int, Int]:
    """The number of a class, told by raw bits, and the bits read; beyond their end they are 0.

    ``raw`` ends with ``RAW_BYTES`` that are none of them.
    """
    least, below = _least_of(size_class)
    after = bit + below
    if below == 0 or after > 8 * (raw.size - RAW_BYTES):
        return least, after
    piece = np.uint64(0)
    for byte in range((below + 14) >> 3):
        piece |= np.uint64(raw[(bit >> 3) + byte]) << np.uint64(8 * byte)
    return least | (np.int64(piece >> np.uint64(bit & 7)) & ((1 << below) - 1)), after


@compiled
def _decode(
    old: Unsigned,
    new: Unsigned,
    model: Model,
    words: NDArray[np.uint16],
    raw: NDArray[np.uint8],
    table: Table,
    turns: Turns,
    quick: Quick,
    at: NDArray[np.int64],
    memory: NDArray[np.int64],
) -> None:
    """Write what is not as it was; ``at`` tells where the decoder ended."""
    tokens = token_count(model.width)
    frequent, candidate, gap = memory[0], memory[1], memory[2]
    modulus = 1 << (8 * model.width)
    magnitude = (modulus >> 1) - 1
    state, other, word, bit = at[STATE], at[NEXT], at[WORD], at[BIT]
    for index in range(old.size):
        bits = np.int64(old[index])
        of = (bits & magnitude) >> model.mantissa_bits
        left = gap[of]
        rare = left >= 0 or of < model.first or of >= model.end
        if rare and left < 0:
            token, moved, word = _read_token(state, word, words, table, turns, quick, KINDS * of + 1, GAP_TOKENS)
            state, other = other, moved
            left, bit = _read_number(bit, raw, token) if token != LAST_GAP else (1 << 62, bit)
        if left > 0:
            gap[of] = left - 1
            if model.steps:
                new[index] = _expected(bits, model)
            continue
        token, moved, word = _read_token(state, word, words, table, turns, quick, KINDS * of, tokens)
        state, other = other, moved
        if token < NEAR:
            size, negative = frequent[of] + (token >> 1) - 1, token & 1
        else:
            size, bit = _read_number(bit, raw, (token - NEAR + 1) >> 1)
            negative = (token - NEAR + 1) & 1
            if size >= 4:
                if -1 <= size - candidate[of] <= 1:
                    frequent[of] = size
                candidate[of] = size
        new[index] = (_expected(bits, model) + (-size if negative else size)) & (modulus - 1)
        if rare:
            gap[of] = -1
    at[STATE], at[NEXT], at[WORD], at[BIT] = state, other, word, bit


# --- as functions of addresses and whole numbers, to be called without Numba -----------------------------------------


def _counting(dtype: Any) -> Callable[..., int]:
    def count(  # type: ignore[no-untyped-def]
        old, new, size, width, mantissa_bits, first, end, steps, loss, counts
    ):
        model = Model(width, mantissa_bits, first, end, steps, loss)
        found = carray(counts, (2, CLASSES), np.int64)
        _count(carray(old, (size,), dtype), carray(new, (size,), dtype), model, found[0], found[1])
        return 0

    return count


def _listing(dtype: Any) -> Callable[..., int]:
    def events(  # type: ignore[no-untyped-def]
        old, new, size, width, mantissa_bits, first, end, steps, loss, contexts, tokens, raw, raw_bits, room, memory
    ):
        return _events(
            carray(old, (size,), dtype),
            carray(new, (size,), dtype),
            Model(width, mantissa_bits, first, end, steps, loss),
            carray(contexts, (room,), np.uint16),
            carray(tokens, (room,), np.uint16),
            carray(raw, (room,), np.uint32),
            carray(raw_bits, (room,), np.uint8),
            carray(memory, (4, CLASSES), np.int64),
        )

    return events


def _modelling(  # type: ignore[no-untyped-def]
    contexts, tokens, raw_numbers, raw_bits, count, table, turns, most, columns
):
    return _model(
        carray(contexts, (count,), np.uint16),
        carray(tokens, (count,), np.uint16),
        carray(raw_numbers, (count,), np.uint32),
        carray(raw_bits, (count,), np.uint8),
        carray(table, (KINDS * CLASSES, columns, 3), np.uint32),
        carray(turns, (KINDS * CLASSES, 2), np.int64),
        carray(turns, (KINDS * CLASSES, 0), np.uint16),  # who encodes looks nothing up
        most,
        carray(raw_numbers, (4 * count,), np.uint8),
    )


def _writing(starts, shares, count, words, room):  # type: ignore[no-untyped-def]
    return write_tokens(
        carray(starts, (count,), np.uint16), carray(shares, (count,), np.uint16), carray(words, (room,), np.uint16)
    )


def _decoding(dtype: Any) -> Callable[..., int]:
    def decode(  # type: ignore[no-untyped-def]
        old, new, size, width, mantissa_bits, first, end, steps, loss,
        words, word_count, raw, raw_count, table, turns, quick, columns, at, memory,
    ):  # fmt: skip
        _decode(
            carray(old, (size,), dtype),
            carray(new, (size,), dtype),
            Model(width, mantissa_bits, first, end, steps, loss),
            carray(words, (word_count,), np.uint16),
            carray(raw, (raw_count,), np.uint8),
            carray(table, (KINDS * CLASSES, columns, 3), np.uint32),
            carray(turns, (KINDS * CLASSES, 2), np.int64),
            carray(quick, (KINDS * CLASSES, WHOLE >> 4), np.uint16),
            carray(at, (4,), np.int64),
            carray(memory, (4, CLASSES), np.int64),
        )
        return 0

    return decode


def entry(name: str) -> Callable[..., int]:
    """The function behind a name of :data:`ckpt.deltas.codecs.contextual.machine.ENTRIES`, to be compiled."""
    loop, _, kind = name.partition("-")
    makers: dict[str, Any] = {"count": _counting, "events": _listing, "decode": _decoding}
    made: Any = {"model": _modelling, "write": _writing}.get(loop)
    return cast(Callable[..., int], makers[loop](np.dtype(kind).type) if made is None else made)
