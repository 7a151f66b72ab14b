"""Windows: what a version did in a short span of time, as a few figures.

Everything here is a pure function of stored sums. A window covers one root: it begins no earlier than the scrape that
first showed that root, so that no answer of another version is in it. It adds up all workers that serve the root. A
figure that cannot be computed is absent, never zero. With little traffic a window grows backwards until it holds enough
rows, or enough requests when they bring few rows because most of them fail; without enough there is no window, and so
no judgement. What outputs look like is not said of fewer than enough rows: the mean of one answer is nobody's habit.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from monitors.totals import Key, Track, gained

SPAN_MS = 2_000
MIN_ROWS = 64  # rows or requests; the mean margin of 64 MNIST digits is known to about 5 %
STALE_MS = 3_000  # a worker without a newer scrape is gone; a store may show a scrape a second late
GROWTH = (1, 2, 4, 8)  # how many spans a window with too few rows may reach back

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One version's behaviour between two moments.

    ``figures`` are named as in ``tolerance.FIGURES`` without ``class_distance``, which needs a reference;
    ``class_shares`` are the shares (0..1) of predictions by class, empty when the model has no classes.
    """

    model: str
    root: str
    version: str
    generation: int
    start_ms: int
    end_ms: int
    rows: int
    requests: int
    instances: tuple[str, ...]
    figures: Figures
    class_shares: Figures


def windows_at(
    tracks: Iterable[Track], *, model: str, end_ms: int, span_ms: int = SPAN_MS, min_rows: int = MIN_ROWS
) -> tuple[Window, ...]:
    """The newest window of every root that is live at ``end_ms``, where it holds enough.

    Args:
        tracks: The model's workers. One whose last scrape is older than ``STALE_MS`` is no longer live.
        model: The model's name, for the windows.
        end_ms: Scrapes after this moment are not looked at.
        span_ms: Length of a window with enough rows, > 0.
        min_rows: Least rows or requests, over all workers of the root.
    """
    by_root: dict[str, list[tuple[Track, int]]] = {}
    for track in tracks:
        last = int(np.searchsorted(track.at_ms, end_ms, side="right")) - 1
        if last >= 0 and end_ms - track.at_ms[last] <= STALE_MS:
            by_root.setdefault(track.roots[last], []).append((track, last))
    grown = (_grown(members, model=model, span_ms=span_ms, min_rows=min_rows) for _, members in sorted(by_root.items()))
    return tuple(window for window in grown if window is not None)


def windows_between(
    tracks: Iterable[Track],
    *,
    model: str,
    start_ms: int,
    end_ms: int,
    span_ms: int = SPAN_MS,
    min_rows: int = MIN_ROWS,
) -> tuple[Window, ...]:
    """Every window that ends at a scrape in this time, oldest first: what a detector learns from."""
    own = tuple(tracks)
    moments = sorted({int(moment) for track in own for moment in track.at_ms if start_ms <= moment <= end_ms})
    found = (windows_at(own, model=model, end_ms=moment, span_ms=span_ms, min_rows=min_rows) for moment in moments)
    return tuple(window for windows in found for window in windows if window.start_ms >= start_ms)


def _grown(members: list[tuple[Track, int]], *, model: str, span_ms: int, min_rows: int) -> Window | None:
    for spans in GROWTH:
        window = _window(members, model=model, span_ms=spans * span_ms, min_rows=min_rows)
        if window is not None and max(window.rows, window.requests) >= min_rows:
            return window
    return None


def _window(members: list[tuple[Track, int]], *, model: str, span_ms: int, min_rows: int) -> Window | None:
    total: Counter[Key] = Counter()
    requests_per_s = 0.0
    starts = []
    for track, last in members:
        first = _first(track, last, span_ms=span_ms)
        if first == last:
            continue  # the root went live with the last scrape: nothing to take a difference of yet
        own = gained(track, first=first, last=last)
        total.update(own)
        seconds = (track.at_ms[last] - track.at_ms[first]) / 1000
        requests_per_s += _sum(own, "treering_requests_total") / float(seconds)
        starts.append(int(track.at_ms[first]))
    if not starts:
        return None
    newest, last = max(members, key=lambda member: int(member[0].at_ms[member[1]]))
    rows = round(total["treering_rows_total", ""])
    outputs = total if rows >= min_rows else Counter[Key]()
    return Window(
        model=model,
        root=newest.roots[last],
        version=newest.versions[last],
        generation=max(int(track.generations[place]) for track, place in members),
        start_ms=min(starts),
        end_ms=int(newest.at_ms[last]),
        rows=rows,
        requests=round(_sum(total, "treering_requests_total")),
        instances=tuple(track.instance for track, _ in members),
        figures=_output_figures(outputs) | _request_figures(total, requests_per_s=requests_per_s),
        class_shares=_shares(outputs, "treering_predictions_total"),
    )


def _first(track: Track, last: int, *, span_ms: int) -> int:
    """The scrape a window begins with: a span back, but no further than the root has been live without a break."""
    first = last
    while first > 0 and track.roots[first - 1] == track.roots[last]:
        if track.at_ms[last] - track.at_ms[first] >= span_ms:
            break
        first -= 1
    return first


def _output_figures(total: Mapping[Key, float]) -> dict[str, float]:
    values = total["treering_output_values_total", ""]
    finite = values - total["treering_output_nonfinite_total", ""]
    mean = _ratio(total["treering_output_sum", ""], finite)
    square = _ratio(total["treering_output_square_sum", ""], finite)
    classified = _sum(total, "treering_predictions_total")
    return _known(
        output_mean=mean,
        output_spread=None if mean is None or square is None else math.sqrt(max(0.0, square - mean**2)),
        margin_mean=_ratio(total["treering_margin_sum", ""], classified),
        nonfinite_share=_ratio(values - finite, values),
    )


def _request_figures(total: Mapping[Key, float], *, requests_per_s: float) -> dict[str, float]:
    requests = _sum(total, "treering_requests_total")
    seconds, answered = total["treering_request_seconds_sum", ""], total["treering_request_seconds_count", ""]
    return _known(
        error_share=_ratio(total["treering_requests_total", "error"], requests),
        request_rate=requests_per_s if requests else None,
        latency_mean=_ratio(seconds, answered),
        latency_p99=quantile(_buckets(total, "treering_request_seconds_bucket"), 0.99),
    )


def _known(**figures: float | None) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """A quantile of a cumulative histogram, linear inside its bucket; the last finite bound stands for what is beyond.

    Args:
        buckets: Upper bound → observations at or below it; one bound is infinite.
        share: 0..1.

    Example:
        >>> quantile({0.1: 50.0, 0.2: 100.0, math.inf: 100.0}, 0.75)
        0.15000000000000002
    """
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]] > 0:
        return None
    wanted = share * buckets[bounds[-1]]
    below, lower = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            inside = buckets[bound] - below
            if math.isinf(bound) or inside <= 0:
                return lower
            return lower + (bound - lower) * (wanted - below) / inside
        below, lower = buckets[bound], bound
    return lower


def _buckets(total: Mapping[Key, float], name: str) -> dict[float, float]:
    return {float(bound): count for (own, bound), count in total.items() if own == name}


def _shares(total: Mapping[Key, float], name: str) -> Figures:
    whole = _sum(total, name)
    return {kind: count / whole for (own, kind), count in total.items() if own == name and whole > 0}


def _sum(total: Mapping[Key, float], name: str) -> float:
    return sum(count for (own, _), count in total.items() if own == name)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
