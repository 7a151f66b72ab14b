"""Outcomes as the JSON document that is committed under ``results``; ``SCHEMA`` changes when its form does."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.outcome import Outcome, SideOutcome, Spread

SCHEMA = "treering-benchmark/1"


def document(outcomes: Iterable[Outcome], *, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was measured, and the facts around it."""
    return {"schema": SCHEMA, **facts, "comparisons": [_comparison(outcome) for outcome in outcomes]}


def _comparison(outcome: Outcome) -> dict[str, Any]:
    return {
        "stage": outcome.stage,
        "name": outcome.comparison.name,
        "note": outcome.comparison.note,
        "sides": [_side(side, ratio=outcome.time_ratio(side)) for side in outcome.sides],
    }


def _side(outcome: SideOutcome, *, ratio: float | None) -> dict[str, Any]:
    head = {
        "name": outcome.side.name,
        "is_ours": outcome.side.is_ours,
        "skipped": outcome.skipped,
        "failed": outcome.failed,
    }
    if not outcome.is_measured:
        return head
    return {
        **head,
        "seconds": _spread(outcome.seconds),
        "peak_extra_bytes": _spread(outcome.peak_extra_bytes),
        "memory_method": outcome.samples[0].memory_method,
        "time_ratio": ratio,
        "figures": {name: _spread(spread) for name, spread in outcome.figures.items()},
        "rounds": len(outcome.samples),
    }


def _spread(spread: Spread) -> dict[str, float]:
    return {"min": spread.low, "median": spread.median, "max": spread.high}
