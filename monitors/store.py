"""The seam to where metrics are kept.

A ``MetricStore`` takes samples and gives back the raw ones of a span of time; nothing is interpolated, so a window can
be an exact difference of two scrapes. Two kinds keep the seam: ``victoria.Victoria`` (a VictoriaMetrics server) and
``embedded.Embedded`` (this process's memory). Both pass the same suite of tests.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one series: its name, its labels sorted by key, and when it was read (Unix milliseconds)."""

    name: str
    labels: Labels
    at_ms: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The samples of one series in a span of time, oldest first: ``at_ms`` int64 and ``values`` float64."""

    name: str
    labels: Labels
    at_ms: NDArray[np.int64]
    values: NDArray[np.float64]

    def label(self, key: str) -> str:
        """The label's value, "" when the series has no such label."""
        return dict(self.labels).get(key, "")


class MetricStore(Protocol):
    """Keeps samples. A NaN is the absence of a value: it is never stored.

    Values of one series come back to 12 decimal digits of the largest of them (VictoriaMetrics stores decimals with a
    common exponent), which is far finer than any figure needs.
    """

    def write(self, samples: Iterable[Sample]) -> None:
        """Add samples; they can be read soon after (VictoriaMetrics: within about a second)."""

    def read(self, labels: Mapping[str, str], *, start_ms: int, end_ms: int) -> tuple[Series, ...]:
        """Every series that carries all these labels, with its samples from start to end, both included."""

    def close(self) -> None:
        """Give back what the store holds open."""


def storable(samples: Iterable[Sample]) -> list[Sample]:
    """The samples that hold a value."""
    return [sample for sample in samples if not math.isnan(sample.value)]
