"""What killed processes leave in a state folder, and its removal.

Every process of the stack has its temporary folder (``TMPDIR``) under ``tmp``. Whoever saves, publishes, fetches or
compiles works beside the final place, under a lock that ends with its process.
"""

import fcntl
import os
import shutil
from pathlib import Path

TEMPORARY = "tmp"
_HELD_WHILE_IN_USE = ("cache/work/*/", "cache/programs/.draft-*", "runs/*/.*.saving/")


def temporary(home: Path) -> Path:
    """The folder for temporary files of the stack's processes."""
    folder = home / TEMPORARY
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sweep(home: Path) -> None:
    """Remove what dead processes left; call it while no process of the stack lives."""
    shutil.rmtree(home / TEMPORARY, ignore_errors=True)
    for pattern in _HELD_WHILE_IN_USE:
        for path in home.glob(pattern):
            _remove_unless_held(path)


def _remove_unless_held(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    except BlockingIOError:
        pass  # a living process outside the stack works there
    finally:
        os.close(descriptor)
