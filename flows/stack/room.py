"""Whether a stack has the disk and the memory that it needs, asked before anything is started.

Without this a full disk shows as a database that ended, and too little memory as processes that the kernel kills.
"""

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from flows.errors import StackError

# Measured over a run of the demo on two cores: 2.4 GB (sum of proportional set sizes), and 60 MB of disk for the MNIST
# recipe.
MEMORY_BYTES = 2 << 30
DISK_BYTES = 256 << 20


def check(home: Path) -> None:
    """Make sure that a stack fits.

    Raises:
        StackError: it does not; nothing was started.
    """
    free = shutil.disk_usage(home).free
    if free < DISK_BYTES:
        raise StackError(
            f"the disk of '{home}' has {_mb(free)} left: expected at least {_mb(DISK_BYTES)}. Free some, or set "
            "TREERING_HOME to a folder on another disk.",
            free_bytes=free,
        )
    memory = min(_limits())
    if memory < MEMORY_BYTES:
        raise StackError(
            f"this machine, container or shell allows {_mb(memory)} of memory: expected {_mb(MEMORY_BYTES)} or more, "
            "for the servers, a training and two workers. Raise the limit, or let MLFLOW_TRACKING_URI and "
            "PREFECT_API_URL name servers elsewhere and start 'python -m serving' alone here.",
            memory_bytes=memory,
        )


def _limits() -> Iterator[int]:
    """Everything that bounds the memory of a process started here, in bytes."""
    yield psutil.virtual_memory().total
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield limit
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        group = line.rpartition(":")[2].lstrip("/")
        for file in ("memory.max", "memory.limit_in_bytes"):
            for place in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
                yield from _number(place / group / file)
                yield from _number(place / file)


def _number(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdigit():  # not "max"
        yield int(text)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
