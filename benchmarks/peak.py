"""The peak of this process's memory during a call, as growth over what it held before.

``VmHWM`` is the kernel's high-water mark of resident memory; writing 5 to ``clear_refs`` sets it back to what is
resident now. Where that is not allowed the growth of ``ru_maxrss`` stands in: it misses what stays below an earlier
peak, so each measurement names its method. Pages of mapped files count while they are resident; memory of child
processes does not.
"""

import ctypes
import gc
import resource
from dataclasses import dataclass
from pathlib import Path

HIGH_WATER, EVER, PROGRAM = "VmHWM", "ru_maxrss", "ru_maxrss of the program"
_PROCESS = Path("/proc/self")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What was resident before a call, and how its peak will be read."""

    method: str
    size_bytes: int


def set_mark() -> Mark:
    """Give free memory back, which would hide growth, and set the high-water mark to what is left."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        return Mark(method=EVER, size_bytes=_ever_bytes())
    return Mark(method=HIGH_WATER, size_bytes=_high_water_bytes())


def growth_bytes(mark: Mark) -> int:
    """How far the peak since the mark lies above it, >= 0."""
    peak_bytes = _high_water_bytes() if mark.method == HIGH_WATER else _ever_bytes()
    return max(0, peak_bytes - mark.size_bytes)


def _high_water_bytes() -> int:
    line = next(line for line in (_PROCESS / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _ever_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
