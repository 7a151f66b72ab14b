"""From raw scores to the scale 0..1 normal, above 1 anomalous.

Conformal: the limit is the score that at most a ``budget`` share of clean windows exceeds, by rank and without assuming
a distribution. What it promises holds for windows like the clean ones it was given: healthy traffic, plus changes that
``tolerance`` calls normal. The scale is vmanomaly's, so that rules written for it keep their meaning.

Source: Vovk, Gammerman and Shafer 2005, "Algorithmic Learning in a Random World", inductive conformal prediction.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Where a member's raw scores become 0 (``usual``, the clean median) and 1 (``most``, the budget's rank)."""

    usual: float
    most: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.usual) and math.isfinite(self.most) and self.usual < self.most):
            raise ValueError(f"a limit must rise: usual is {self.usual}, most is {self.most}")

    def scale(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """0 at the usual score and below, 1 at the limit, linear beyond."""
        return np.maximum(0.0, (raw - self.usual) / (self.most - self.usual))


def calibrate(clean: NDArray[np.float64], *, budget: float) -> Limit:
    """The limit that a further clean score exceeds with probability at most ``budget``.

    Args:
        clean: Raw scores of clean windows that the member was not fitted on, shape (n,).
        budget: Allowed share of false alarms, above 1 / (n + 1): fewer scores cannot promise that little.
    """
    rank = math.ceil((len(clean) + 1) * (1 - budget))
    if rank > len(clean):
        raise ValueError(f"{len(clean)} clean scores cannot promise a false-alarm share of {budget}: give more of them")
    ordered = np.sort(clean)
    return Limit(usual=float(ordered[len(ordered) // 2]), most=float(ordered[rank - 1]))
