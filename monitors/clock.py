"""The time that samples carry: of day when this process began, and from then on without jumps.

A clock that somebody sets, or a time server corrects, would otherwise hide an hour of windows or show one twice. What a
monitor writes and reads is on one such axis; a monitor that is started again begins a new one.
"""

import time

_BEGAN_NS = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def now_ms() -> int:
    """Milliseconds since the epoch; only ever grows."""
    return (_BEGAN_NS + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000
