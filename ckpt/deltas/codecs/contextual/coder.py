"""An entropy coder whose tables learn while they code: range asymmetric numeral systems (rANS) over adaptive contexts.

A *context* has a table of how often each token was met in it. Encoder and decoder start from the same table and
change it alike, so none is stored; small frames are coded nearly as well as large ones. A token that stands for a
range of numbers is followed by raw bits, which lie in a stream of their own.

All arithmetic is on integers: the same input gives the same bytes on every machine.

Source: Duda 2013, "Asymmetric numeral systems", arXiv 1311.2540; the 32-bit form with words of 16 bits is Giesen's.
"""

import numpy as np
from numpy.typing import NDArray

from ckpt.deltas.codecs.contextual.compiling import Int, compiled
from ckpt.deltas.codecs.contextual.layout import (
    COUNT,
    DUE,
    LOWEST,
    MET,
    PRECISION,
    SHARE,
    START,
    WHOLE,
    Quick,
    Table,
    Turns,
)

_STEP = 16  # what one token adds to its count
_FIRST = 4  # tokens until a context's shares are counted anew for the first time
_LATEST = 1024  # tokens between two such counts, at most
_FORGET = 1 << 18  # sum of counts at which all are halved: about 16,000 tokens
_INHERITED = 16  # sum of the counts that a new context takes over from its neighbour
_ENOUGH = 8  # tokens that a neighbour must have met


@compiled
def _share_out(table: Table, quick: Quick, context: Int, tokens: Int) -> None:
    """Shares in proportion to counts, at least 1 for each token; what is left goes to the most frequent one."""
    row = table[context]
    total = np.int64(0)
    for token in range(tokens):
        total += np.int64(row[token, COUNT])
    scale = (np.int64(WHOLE - tokens) << 20) // total
    given, most = np.int64(0), 0
    for token in range(tokens):
        share = 1 + ((np.int64(row[token, COUNT]) * scale) >> 20)
        row[token, SHARE] = share
        given += share
        if row[token, COUNT] > row[most, COUNT]:
            most = token
    row[most, SHARE] += WHOLE - given
    start = np.int64(0)
    for token in range(tokens):
        row[token, START] = start
        end = start + np.int64(row[token, SHARE])
        if quick.shape[1]:
            for slot in range((start + 15) >> 4, (end + 15) >> 4):
                quick[context, slot] = token
        start = end


@compiled
def _begin(table: Table, turns: Turns, quick: Quick, context: Int, tokens: Int, step: Int) -> None:
    """Counts of a context that is met for the first time: a neighbour's, scaled down, or falling from small to large.

    Neighbours are the contexts of the same kind, ``step`` apart; the nearest that has met enough is asked.
    """
    source: Int = -1
    for distance in range(step, 20 * step, step):
        below, above = context - distance, context + distance
        if below >= 0 and turns[below, MET] >= _ENOUGH:
            source = below
            break
        if above < len(turns) and turns[above, MET] >= _ENOUGH:
            source = above
            break
    left = np.int64(0)
    if source >= 0:
        total = np.int64(0)
        for token in range(tokens):
            total += np.int64(table[source, token, COUNT])
        for token in range(tokens):
            taken = np.int64(table[source, token, COUNT]) * _INHERITED // total
            table[context, token, COUNT] = taken
            left += taken
    if left == 0:
        for token in range(tokens):
            table[context, token, COUNT] = max(1, 8 >> (token >> 1))
    _share_out(table, quick, context, tokens)
    turns[context, DUE] = _FIRST


@compiled
def _count_anew(table: Table, turns: Turns, quick: Quick, context: Int, tokens: Int) -> None:
    total = np.int64(0)
    for token in range(tokens):
        total += np.int64(table[context, token, COUNT])
    if total > _FORGET:
        for token in range(tokens):
            table[context, token, COUNT] = (table[context, token, COUNT] + 1) >> 1
    _share_out(table, quick, context, tokens)
    met = turns[context, MET]
    turns[context, DUE] = met + min(max(met >> 2, _FIRST), _LATEST)


@compiled
def prepare(table: Table, turns: Turns, quick: Quick, context: Int, tokens: Int, step: Int) -> None:
    """See to it that a context has shares."""
    if turns[context, DUE] == 0:
        _begin(table, turns, quick, context, tokens, step)


@compiled
def learn(table: Table, turns: Turns, quick: Quick, context: Int, token: Int, tokens: Int) -> None:
    """Count a token that was coded."""
    table[context, token, COUNT] += _STEP
    turns[context, MET] += 1
    if turns[context, MET] == turns[context, DUE]:
        _count_anew(table, turns, quick, context, tokens)


@compiled
def write_tokens(starts: NDArray[np.uint16], shares: NDArray[np.uint16], words: NDArray[np.uint16]) -> int:
    """Code tokens, given by their shares in the order in which they are to be decoded.

    Two coders take turns, so that the processor need not wait for the one before it goes on with the other; their words
    lie in one stream.

    Args:
        starts, shares: Of each token, as its context's table had them then.
        words: Gets the code from its end on, in the order of reading: two words for each coder's state, then the rest.

    Returns:
        Where in ``words`` the code begins.
    """
    state, other, place = np.uint64(LOWEST), np.uint64(LOWEST), words.size
    for index in range(starts.size - 1, -1, -1):
        share = np.uint64(shares[index])
        if state >= share << np.uint64(32 - PRECISION):
            place -= 1
            words[place] = state & np.uint64(0xFFFF)
            state >>= np.uint64(16)
        quotient = np.uint64(np.uint32(state) // np.uint32(share))
        state = (quotient << np.uint64(PRECISION)) + (state - quotient * share) + np.uint64(starts[index])
        state, other = other, state
    for each in (state, other):  # ``other`` coded the first token: it is read first
        place -= 2
        words[place + 1] = each >> np.uint64(16)
        words[place] = each & np.uint64(0xFFFF)
    return place
