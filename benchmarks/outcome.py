"""Measurements as values: one sample, the samples of a side, and what they say together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.plan import Comparison, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement: seconds for one unit, and the growth of resident memory at its peak."""

    seconds: float
    peak_extra_bytes: int
    memory_method: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Least, median and greatest of some samples: the middle and the noise."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(low=min(values), median=median(values), high=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutcome:
    """A side's samples, one for each round; or why it was left out, or how it failed."""

    side: Side
    samples: tuple[Sample, ...]
    skipped: str | None = None
    failed: str | None = None

    @property
    def is_measured(self) -> bool:
        return self.skipped is None and self.failed is None

    @property
    def seconds(self) -> Spread:
        return Spread.of([sample.seconds for sample in self.samples])

    @property
    def peak_extra_bytes(self) -> Spread:
        return Spread.of([sample.peak_extra_bytes for sample in self.samples])

    @property
    def figures(self) -> dict[str, Spread]:
        """The case's own figures by name."""
        return {name: Spread.of([sample.figures[name] for sample in self.samples]) for name in self.samples[0].figures}

    def time_ratio(self, reference: "SideOutcome") -> float:
        """Median over the rounds of this side's seconds ÷ the reference's in the same round."""
        pairs = zip(self.samples, reference.samples, strict=True)
        return median(mine.seconds / other.seconds for mine, other in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A measured comparison; the first side is the one that ratios refer to."""

    stage: str
    comparison: Comparison
    sides: tuple[SideOutcome, ...]

    def time_ratio(self, side: SideOutcome) -> float | None:
        """The side's time as a multiple of the first side's; None when either was not measured."""
        reference = self.sides[0]
        return side.time_ratio(reference) if side.is_measured and reference.is_measured else None
