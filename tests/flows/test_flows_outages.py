"""What a log says of a worker that is down."""

from collections.abc import Iterable

import numpy as np

from flows.outages import AGAIN_S, WELL_S, once_an_outage
from monitors import ScrapeError


def told(faults: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    """When which faults are passed on, of those that come."""
    passed: list[tuple[float, str]] = []
    now = [0.0]
    hear = once_an_outage(lambda fault: passed.append((now[0], str(getattr(fault, "url", "")))), clock=lambda: now[0])
    for now[0], url in faults:
        hear(ScrapeError(url, found="refused"))
    return passed


def test_an_outage_is_told_once_and_then_each_minute() -> None:
    every_half_second = [(float(at), "a") for at in np.arange(0, 2 * AGAIN_S + 1, 0.5)]

    assert told(every_half_second) == [(0.0, "a"), (AGAIN_S, "a"), (2 * AGAIN_S, "a")]


def test_each_worker_has_outages_of_its_own() -> None:
    assert told([(0.0, "a"), (0.5, "b"), (1.0, "a"), (1.5, "b")]) == [(0.0, "a"), (0.5, "b")]


def test_a_worker_that_fails_again_after_it_was_well_is_told_of_again() -> None:
    again = 1.0 + WELL_S

    assert told([(0.0, "a"), (1.0, "a"), (again, "a"), (again + 1, "a")]) == [(0.0, "a"), (again, "a")]
