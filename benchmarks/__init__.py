"""Speed and memory, measured beside the tools that people would use instead.

    python -m benchmarks pipeline --json benchmarks/results/pipeline.json

An *area* is a list of *stages*; a stage prepares what its *comparisons* share; a comparison has *sides*: ours first,
then the peers. Each measurement is a process of its own that prepares its input, then takes the time and the peak of
extra memory of one call, so neither imports nor what ran before count. Sides take turns (A, B, A, B, …), so a busy
machine slows them alike, and a ratio is the median over the rounds. A peer that is not installed is left out and the
reason stands in its place.

Where to look: ``areas`` is the table of areas, ``plan`` what an area is written in, ``running`` takes the measurements
with ``child`` processes, ``outcome`` holds them, ``document`` and ``table`` show them; ``pipeline`` is the first area.
``peers`` holds scripts for programs that this package must not import, ``pairs`` makes the checkpoints that deltas are
measured on. Speed decides no test; it is recorded in
``results`` with the facts of the machine it was measured on.
"""

from benchmarks.areas import AREAS, find_area
from benchmarks.errors import BenchmarkError, UnknownAreaError
from benchmarks.plan import Call, Comparison, Side, Stage

__all__ = [
    "AREAS",
    "BenchmarkError",
    "Call",
    "Comparison",
    "Side",
    "Stage",
    "UnknownAreaError",
    "find_area",
]
