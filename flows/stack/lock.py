"""One change of a state folder's stack at a time, among all processes of the machine."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Nobody else starts or stops services of this state folder meanwhile; the kernel lets go when a holder dies."""
    (home / "stack").mkdir(parents=True, exist_ok=True)
    with open(home / "stack" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
