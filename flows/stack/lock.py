"""One change of a state folder's stack at a time, among all processes of the machine."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from flows.errors import StackError


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Nobody else starts or stops services of this state folder meanwhile; the kernel lets go when a holder dies.

    Raises:
        StackError: the state folder cannot be written to.
    """
    with lock_file(home / "stack" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lock_file(path: Path) -> TextIO:
    """A file to lock, made with its folder where it is not there.

    Raises:
        StackError: the state folder cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "w")
    except OSError as error:
        raise StackError(
            f"'{path}' cannot be written: {error.strerror}. Expected a state folder of yours on a disk with room; set "
            "TREERING_HOME to one.",
            path=path,
        ) from error
