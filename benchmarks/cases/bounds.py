"""What a coder of element differences could reach at best, by two models, from the counts of a pair itself.

*Zero-order*: every difference is drawn alike, so N elements take N · H(difference) bits, which is the entropy of the
mask at its density and that of the values of what changed. *Given the exponent*: elements with the same exponent in the
base are drawn alike, N · H(difference | exponent). Differences are integers modulo 2ʷ; each dtype has statistics of its
own; elements that the base does not have count in full. The statistics themselves and the digests are not counted, so
where differences are nearly all distinct, as after many steps in float32, no coder gets there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.pairs.changes import Change, changed_share, changes
from benchmarks.plan import Call

# dtype → (bits of the mantissa, highest exponent)
EXPONENTS = {torch.float32: (23, 255), torch.bfloat16: (7, 255), torch.float16: (10, 31)}
_KEY_BITS = np.uint64(32)  # of a difference, under the exponent


@contextmanager
def bounds(*, work: Path, shared: Path, part: str) -> Iterator[Call]:
    """Both, as ratios to the target's file like those of patches."""
    folder = shared / part
    found: list[tuple[float, float]] = []

    def figures() -> dict[str, float]:
        target_bits = 8 * (folder / "target.safetensors").stat().st_size
        zero_order, given_exponent = found[0]
        return {
            "changed_share": changed_share(folder / "base", folder / "target"),
            "zero_order_ratio": target_bits / max(1.0, zero_order),
            "given_exponent_ratio": target_bits / max(1.0, given_exponent),
        }

    yield Call(run=lambda: found.append(bits_of(folder / "base", folder / "target")), figures=figures)


def bits_of(base: Path, target: Path) -> tuple[float, float]:
    """Bits by the zero-order model, and bits given the exponent."""
    by_dtype: dict[torch.dtype, list[Change]] = {}
    new_bits = 0
    for change in changes(base, target):
        by_dtype.setdefault(change.dtype, []).append(change)
        new_bits += change.new_elements * change.dtype.itemsize * 8
    both = [_bits(dtype, of_dtype) for dtype, of_dtype in by_dtype.items()]
    return new_bits + sum(zero for zero, _ in both), new_bits + sum(given for _, given in both)


def _bits(dtype: torch.dtype, of_dtype: list[Change]) -> tuple[float, float]:
    mantissa, highest = EXPONENTS.get(dtype, (0, 0))
    elements = np.zeros(highest + 1, np.int64)  # by exponent
    keys = []  # of changed elements: exponent and difference
    for change in of_dtype:
        exponents = (change.base >> mantissa) & highest
        elements += np.bincount(exponents.astype(np.int64), minlength=highest + 1)
        differences = change.target - change.base
        changed = np.flatnonzero(differences)
        keys.append(exponents[changed].astype(np.uint64) << _KEY_BITS | differences[changed])
    pairs, counts = np.unique(np.concatenate(keys), return_counts=True)
    exponents, differences = (pairs >> _KEY_BITS).astype(np.int64), pairs & np.uint64(0xFFFFFFFF)
    changed_of = np.bincount(exponents, weights=counts, minlength=highest + 1)
    given = _surprise(elements) - _surprise(elements - changed_of) - _surprise(counts)
    _, places = np.unique(differences, return_inverse=True)
    total = elements.sum(keepdims=True)
    zero = _surprise(total) - _surprise(total - counts.sum()) - _surprise(np.bincount(places, weights=counts))
    return zero, given


def _surprise(counts: NDArray[np.number]) -> float:
    """Σ n log₂ n; of the whole less that of its parts is the number of bits that tell the parts."""
    some = counts[counts > 0].astype(np.float64)
    return float(np.sum(some * np.log2(some)))
