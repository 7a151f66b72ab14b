"""Faults of a watch, told once an outage: a worker that is down for a minute would fill a log otherwise."""

import time
from collections.abc import Callable

from monitors import MonitorError

WELL_S = 10.0  # without a fault, before the next one of the same place counts as new
AGAIN_S = 60.0  # after which a fault that lasts is told again


def once_an_outage(
    say: Callable[[MonitorError], None], *, clock: Callable[[], float] = time.monotonic
) -> Callable[[MonitorError], None]:
    """A listener that passes on the first fault of each outage of a place, and another each minute that it lasts.

    Args:
        say: Hears what is passed on.
        clock: Seconds, of a clock that only rises.
    """
    seen: dict[str, float] = {}
    told: dict[str, float] = {}

    def hear(fault: MonitorError) -> None:
        place, now = str(getattr(fault, "url", "")), clock()
        is_new = place not in seen or now - seen[place] >= WELL_S
        seen[place] = now
        if is_new or now - told[place] >= AGAIN_S:
            told[place] = now
            say(fault)

    return hear
