"""One pipeline at a time for each model; pipelines of different models run side by side.

Two runs of one model would take each other's newest version for the one to go on from, and would end each other's
monitor. The second one waits; the kernel lets it in when the first has ended, however it ended.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flows.settings import home
from flows.stack.lock import lock_file


@contextmanager
def turn(model: str, *, say: Callable[[str], None]) -> Iterator[None]:
    """Hold a model's turn in this state folder; says so when it has to be waited for."""
    with lock_file(home() / "turns" / model) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another pipeline of '{model}' is running: this one goes on when that has ended")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
