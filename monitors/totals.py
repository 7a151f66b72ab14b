"""Stored series → what each worker had counted at each scrape.

Workers count in sums that only grow, so a window is a difference of two scrapes, and nothing is lost between them. Two
things can spoil a difference: a worker that restarted (its sums begin again at 0) and an update inside the window (the
sums of two versions mix). So a ``Track`` is one worker's scrapes with the root that was live at each, and ``gained``
adds up what was counted between two of them across restarts. Scrapes that the store shows only in part are left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from monitors.store import Series

Key = tuple[str, str]  # a series' name, and the one label that splits it: a class, a status, a bucket's bound

ROWS = "treering_rows_total"
REQUIRED = (ROWS, "treering_output_sum", "treering_output_square_sum", "treering_output_values_total")
GENERATION = "treering_generation"
INFO = "treering_model_info"
SPLIT_BY = {
    "treering_predictions_total": "class",
    "treering_requests_total": "status",
    "treering_request_seconds_bucket": "le",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One worker's scrapes, oldest first.

    ``at_ms`` has shape (scrapes,); ``roots``, ``versions`` and ``generations`` say what was live at each; ``counts``
    has shape (scrapes, keys).
    """

    instance: str
    at_ms: NDArray[np.int64]
    roots: tuple[str, ...]
    versions: tuple[str, ...]
    generations: NDArray[np.int64]
    keys: tuple[Key, ...]
    counts: NDArray[np.float64]


def tracks(series: Iterable[Series]) -> tuple[Track, ...]:
    """One track for each worker among the series of one model; workers without a whole scrape are left out."""
    by_instance: dict[str, list[Series]] = {}
    for one in series:
        by_instance.setdefault(one.label("instance"), []).append(one)
    built = (_track(instance, own) for instance, own in sorted(by_instance.items()))
    return tuple(track for track in built if track is not None)


def gained(track: Track, *, first: int, last: int) -> dict[Key, float]:
    """What the worker counted between two of its scrapes, by key; a restart in between loses nothing after it.

    A restart shows in the rows: they alone must never fall (the sum of outputs may, since outputs may be negative).
    """
    counts = track.counts[first : last + 1]
    steps = np.diff(counts, axis=0)
    restarted = steps[:, track.keys.index((ROWS, ""))] < 0
    steps[restarted] = counts[1:][restarted]
    return dict(zip(track.keys, steps.sum(axis=0).tolist(), strict=True))


def _track(instance: str, series: list[Series]) -> Track | None:
    named = {one.name: one for one in series if one.name not in SPLIT_BY and one.name != INFO}
    infos = [one for one in series if one.name == INFO]
    if not infos or any(name not in named for name in (*REQUIRED, GENERATION)):
        return None
    informed = reduce(np.union1d, (one.at_ms for one in infos))
    at_ms = reduce(np.intersect1d, (named[name].at_ms for name in (*REQUIRED, GENERATION)), informed)
    if not at_ms.size:
        return None
    live = [_live(infos, int(moment)) for moment in at_ms]
    began_ms = _began(named[ROWS].values[np.searchsorted(named[ROWS].at_ms, at_ms)], at_ms)
    counted = {
        (one.name, one.label(SPLIT_BY[one.name]) if one.name in SPLIT_BY else ""): _values_at(
            one, at_ms, began_ms=began_ms
        )
        for one in series
        if one.name not in (INFO, GENERATION)
    }
    return Track(
        instance=instance,
        at_ms=at_ms,
        roots=tuple(info.label("root") for info in live),
        versions=tuple(info.label("version") for info in live),
        generations=_values_at(named[GENERATION], at_ms, began_ms=began_ms).astype(np.int64),
        keys=tuple(counted),
        counts=np.stack(list(counted.values()), axis=1),
    )


def _live(infos: list[Series], moment_ms: int) -> Series:
    """The info series that has a sample at this moment: a worker shows one root at a time."""
    return next(one for one in infos if moment_ms in one.at_ms)


def _began(rows: NDArray[np.float64], at_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each scrape the moment before which counts are of an earlier life of the worker: rows fall between lives."""
    began = np.where(np.diff(rows, prepend=0.0) < 0, at_ms, 0)
    return np.maximum.accumulate(began)


def _values_at(series: Series, at_ms: NDArray[np.int64], *, began_ms: NDArray[np.int64]) -> NDArray[np.float64]:
    """The latest value at or before each moment, of the life that began at ``began_ms``.

    0 before the first, since a count that is not there is 0: a worker shows a class once it has predicted it, and a
    restarted one must not be taken to have counted what its predecessor did.
    """
    place = np.searchsorted(series.at_ms, at_ms, side="right") - 1
    latest = np.maximum(place, 0)
    is_there = (place >= 0) & (series.at_ms[latest] >= began_ms)
    return np.where(is_there, series.values[latest], 0.0)
