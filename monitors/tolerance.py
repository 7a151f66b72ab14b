"""What a healthy new version may change, and in which unit each figure is judged.

A detector learns from the champion's traffic, and the next version is not the champion: a head fine-tuned on the digits
moved the mean output by 0.08 spreads and the margin by 6 % (measured on the MNIST recipe). Machines are noisy too: on
two cores, compiling beside the workers slows answers several times. So each figure is turned into a distance from its
healthy centre in units of the change that is still normal. This table is that policy. Detectors see nothing else, so
one model of "unusual" serves figures of any scale.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log

TINY = 1e-9  # keeps log finite at 0; far below any latency in seconds or margin in logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How a figure is judged.

    Args:
        scale: "linear", "log" (ratios matter), or "spreads" (linear, in units of the healthy output spread).
        change: What is still normal: a difference, the log of a ratio, or a number of spreads.
        only_high: A fall is never a fault (fewer errors, faster answers).
        of_load: It follows from what the machine and its clients do as much as from the version.
    """

    scale: str
    change: float
    only_high: bool = False
    of_load: bool = False


FIGURES: dict[str, Tolerance] = {
    "output_mean": Tolerance(scale="spreads", change=0.5),
    "output_spread": Tolerance(scale="log", change=log(1.5)),
    "margin_mean": Tolerance(scale="log", change=log(1.5)),
    "class_distance": Tolerance(scale="linear", change=0.15, only_high=True),  # half the sum of share differences
    "nonfinite_share": Tolerance(scale="linear", change=0.001, only_high=True),
    "error_share": Tolerance(scale="linear", change=0.05, only_high=True),
    "request_rate": Tolerance(scale="log", change=log(10), of_load=True),
    "latency_mean": Tolerance(scale="log", change=log(10), only_high=True, of_load=True),
    "latency_p99": Tolerance(scale="log", change=log(20), only_high=True, of_load=True),
}

SCALES: dict[str, Callable[[float], float]] = {
    "linear": lambda value: value,
    "spreads": lambda value: value,
    "log": lambda value: log(max(value, TINY)),
}
