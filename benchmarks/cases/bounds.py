"""What a coder of element differences could reach at best, by two models, from the counts of a pair itself.

*Zero-order*: every difference is drawn alike, so N elements take N · H(difference) bits, which is the entropy of the
mask at its density and that of the values of what changed. *Given the exponent*: elements with the same exponent in the
base are drawn alike, N · H(difference | exponent). Differences are integers modulo 2ʷ; each tensor has statistics of
its own, since layers and a table of words differ much; elements that the base does not have count in full. The
statistics themselves and the digests are not counted, so where differences are nearly all distinct, as after many
steps in float32, no coder gets there; one that knows more than the exponent, as which rows were touched, goes beyond.
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
    both = [_bits(change) for change in changes(base, target)]
    return sum(zero_order for zero_order, _ in both), sum(given_exponent for _, given_exponent in both)


def _bits(change: Change) -> tuple[float, float]:
    mantissa, highest = EXPONENTS.get(change.dtype, (0, 0))
    exponents = ((change.base >> mantissa) & highest).astype(np.int64)
    _, differences = np.unique(change.target - change.base, return_inverse=True)  # numbered
    _, pairs = np.unique(differences * (highest + 1) + exponents, return_counts=True)
    by_pair, by_exponent, by_difference = _surprise(pairs), _counted(exponents), _counted(differences)
    new_bits = change.new_elements * change.dtype.itemsize * 8
    total = _surprise(np.array([len(exponents)]))
    return new_bits + total - by_difference, new_bits + by_exponent - by_pair


def _counted(numbers: NDArray[np.int64]) -> float:
    return _surprise(np.bincount(numbers))


def _surprise(counts: NDArray[np.number]) -> float:
    """Σ n log₂ n; of the whole less that of its parts is the number of bits that tell the parts."""
    some = counts[counts > 0].astype(np.float64)
    return float(np.sum(some * np.log2(some)))
