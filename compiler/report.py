"""What compiling did: each pass's changes and refusals, and each comparison with float64."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.passes.report import PassReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One comparison with the model in float64.

    Errors are the largest absolute difference from float64 over all outputs' finite elements.

    ``checkpoint`` is ``"given"`` (the model's own weights) or ``"perturbed"`` (every weight changed, through the
    formulas); ``inputs`` names the kind of values; ``sizes`` holds the dynamic dimensions' sizes.
    """

    backend: str
    checkpoint: str
    inputs: str
    sizes: Mapping[str, int]
    error: float
    eager_error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is within its bound (a NaN is not)."""
        return self.error <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A graph for people: stable text, and Graphviz."""

    text: str
    dot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole account of one compilation; ``captured`` is the graph as it was before the passes.

    ``cache`` says what came of the cache in the call that returned it (what was recalled, or why nothing was), and is
    not stored with the program.
    """

    passes: tuple[PassReport, ...]
    figures: tuple[Figure, ...]
    captured: Drawing | None = None
    cache: str = field(default="", compare=False)

    def count(self, name: str) -> int:
        """How many changes the pass of this name made: ``report.count("fold_batchnorm")``."""
        return sum(len(entry.changes) for entry in self.passes if entry.name == name)

    @property
    def worst(self) -> Figure | None:
        """The figure that used most of its bound; None before verification."""
        return max(self.figures, key=lambda figure: figure.error / max(figure.bound, 1e-300), default=None)
