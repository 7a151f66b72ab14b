"""Python's cyclic garbage collector, paused while tables of many objects are built that all stay.

It looks at every object again each time their number has grown by a quarter: with 100,000 tensors that is a third of
the time of saving and of loading, and finds nothing. Pauses are as short as a table is long; other threads go without
it meanwhile.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_pauses = 0
_was_on = False


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause collection; where pauses overlap in several threads, until the last one ends. Also a decorator."""
    global _pauses, _was_on
    with _lock:
        if _pauses == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_on:
                gc.enable()
