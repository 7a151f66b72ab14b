"""What weight decay makes of a float32 when nothing else happens to it.

AdamW multiplies every weight by 1 − learning rate × decay before each step; rows of an embedding that no batch has
met get nothing else. In units of the last place such a weight loses the same whole number in each of ``steps`` steps:
its significand × ``loss``, rounded. Moments decay alike, by their β. So do weights in a first step of Adam, which then
moves each by the learning rate. Where a delta's encoder finds that some of the elements moved so, differences are
taken from there.

Integers alone are used, so that encoder and decoder agree on every machine; what differs from what was computed in
floats is a difference to be coded like others, and no fault.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

LOSS_BITS = 40  # of the fixed point in which ``loss`` is given, in [0, 1/2)
MAX_STEPS = 255
_SAMPLE = 1024
_LEAST_SHARE = 0.05  # of the sample: fewer that fit are chance, or save nothing
_MOST_ALIKE = 0.8  # of as many as fit a decay: a few that it did not move may be
_MORE_ALIKE = 1.1  # times as many have to be, when a decay is taken from their distances
_FEWEST = 32  # that moved either way tell how far that was
_EXPONENTS = 0xFF << 23
_SIGN = 1 << 31
_HIDDEN = 1 << 23


def fitted(old: NDArray[np.uint32], new: NDArray[np.uint32]) -> tuple[int, int]:
    """``loss`` and ``steps`` of the decay that most of a sample agrees with; (0, 0) where hardly any does.

    Elements agree that nothing else happened to, or, in a first step of Adam, what happened to all of their exponent.
    """
    every = max(1, old.size // _SAMPLE)
    before, after = old[::every].astype(np.int64), new[::every].astype(np.int64)
    plain = ((before & _EXPONENTS) > _HIDDEN) & ((before & _EXPONENTS) < _EXPONENTS)
    plain &= ((before ^ after) & (_SIGN | _EXPONENTS)) == 0
    lost, significand = (before - after)[plain], (before[plain] & (_HIDDEN - 1)) | _HIDDEN
    exponents = (before[plain] & _EXPONENTS) >> 23
    enough = max(16.0, _LEAST_SHARE * len(before))
    alike = _alike(lost, exponents)
    best, hits = (0, 0), max(enough, _MOST_ALIKE * alike)
    for loss, steps in _alone(lost[lost > 0], significand[lost > 0], enough):
        agree = float(np.count_nonzero(steps * _rounded(significand, loss) == lost))
        if agree > hits:
            best, hits = (loss, steps), agree
    hits = max(hits, _MORE_ALIKE * alike)
    for loss in _beside_a_step(lost, significand, exponents):
        agree = _alike(lost - _rounded(significand, loss), exponents)
        if agree > hits:
            best, hits = (loss, 1), agree
    return best


def _alike(lost: NDArray[np.int64], exponents: NDArray[np.int64]) -> int:
    """Elements that moved by what most of their exponent did, up or down, as in the first step of Adam.

    Of a decay alone there are fewer, or hardly more than it tells of as well: it follows the significand, one way.
    """
    moved = lost != 0
    both, counts = np.unique(exponents[moved] << 32 | np.abs(lost[moved]), return_counts=True)
    most = np.zeros(256, np.int64)
    np.maximum.at(most, both >> 32, counts)
    return int(most.sum())


def _alone(lost: NDArray[np.int64], significand: NDArray[np.int64], enough: float) -> Iterator[tuple[int, int]]:
    """Decays that may be all that happened: loss and steps."""
    if len(lost) < enough:
        return
    for steps in {1, _common_factor(lost, enough)}:
        whole = lost % steps == 0
        yield _loss(lost[whole] // steps, significand[whole]), steps


def _beside_a_step(
    lost: NDArray[np.int64], significand: NDArray[np.int64], exponents: NDArray[np.int64]
) -> Iterator[int]:
    """Losses of a decay that came with a step of one size, up or down: what is left when one of each is added."""
    usual = exponents == np.bincount(exponents, minlength=1).argmax()
    down, up = usual & (lost > 0), usual & (lost < 0)
    pairs = min(np.count_nonzero(down), np.count_nonzero(up))
    if pairs < _FEWEST:
        return
    apart = lost[down][:pairs] + lost[up][:pairs]  # the step is gone
    near = round(float(np.median(apart / (significand[down][:pairs] + significand[up][:pairs]))) * 2**24)
    for units in range(max(near - 1, 1), near + 2):  # 1 - loss was a float32
        yield units << (LOSS_BITS - 24)


def _common_factor(lost: NDArray[np.int64], enough: float) -> int:
    """The largest number that divides many more of these than it does by chance."""
    factors = np.arange(1, MAX_STEPS + 1)
    excess = np.count_nonzero(lost[:, None] % factors == 0, axis=0) - len(lost) / factors
    return int(factors[excess >= max(enough, 0.9 * excess.max())].max(initial=1))


def _loss(each_step: NDArray[np.int64], significand: NDArray[np.int64]) -> int:
    """The loss that rounds to ``each_step`` for the most: where the intervals that do so overlap most."""
    low, high = (each_step - 0.5) / significand, (each_step + 0.5) / significand
    ends = np.concatenate([low, high])
    order = np.argsort(ends, kind="stable")
    depth = np.cumsum(np.where(order < len(low), 1, -1))
    deepest = int(depth.argmax())
    first, last = ends[order[deepest]], ends[order[deepest + 1]]
    exact = np.round((first + last) / 2 * 2**24) / 2**24  # 1 − loss was a float32
    chosen = exact if first < exact < last else (first + last) / 2
    return int(min(round(float(chosen) * 2**LOSS_BITS), (1 << (LOSS_BITS - 1)) - 1))


def _rounded(significand: NDArray[np.int64], loss: int) -> NDArray[np.int64]:
    return (significand * loss + (1 << (LOSS_BITS - 1))) >> LOSS_BITS
