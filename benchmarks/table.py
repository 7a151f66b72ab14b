"""Outcomes as a table for people: a line for each side, ours first."""

from collections.abc import Iterable

from benchmarks.outcome import Outcome, SideOutcome

_MIB = 1 << 20


def table(outcomes: Iterable[Outcome]) -> str:
    """Median time (least to greatest), time as a multiple of the first side's, peak extra memory, own figures."""
    lines = []
    for outcome in outcomes:
        lines.append(f"\n{outcome.stage}: {outcome.comparison.name}")
        lines += [_line(outcome, side) for side in outcome.sides]
        lines.append(f"    {outcome.comparison.note}")
    return "\n".join(lines)


def _line(outcome: Outcome, side: SideOutcome) -> str:
    name = f"  {'*' if side.side.is_ours else ' '} {side.side.name:<38}"
    if side.skipped is not None:
        return f"{name} left out: {side.skipped}"
    if side.failed is not None:
        return f"{name} failed: {side.failed.splitlines()[0]}"
    seconds, ratio = side.seconds, outcome.time_ratio(side)
    spread = f"({_time(seconds.low)} to {_time(seconds.high)})"
    times = f"{ratio:.2f} ×" if ratio is not None else ""
    memory = f"+{side.peak_extra_bytes.median / _MIB:.1f} MiB"
    figures = ", ".join(f"{figure} {spread.median:,.5g}" for figure, spread in side.figures.items())
    return f"{name} {_time(seconds.median):>9} {spread:<24} {times:>9} {memory:>12}  {figures}".rstrip()


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
