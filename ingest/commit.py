"""A folder that appears whole or not at all.

The content is written into a dot-named sibling, every file and the folder are fsynced, and one rename puts it in place.
After a kill at any point the target is absent or complete; the sibling that a killed writer left behind is no longer
locked, and the next writer of the same target removes it.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staged(out: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A sibling folder to write into, and the call that renames it to ``out``; without that call it is removed.

    Raises:
        OSError: ``publish`` found ``out`` taken by a folder that is not empty, or by a file.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(out)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def publish() -> None:
        for path in folder.iterdir():
            _fsync(path)
        os.fsync(lock)
        folder.chmod(0o755)  # mkdtemp made it private
        folder.rename(out)
        _fsync(out.parent)

    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder, publish
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # gone already when it was published
        os.close(lock)


def _remove_leftovers(out: Path) -> None:
    for leftover in out.parent.glob(f".{out.name}.partial-*"):
        descriptor = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its writer is alive
        else:
            shutil.rmtree(leftover)
        finally:
            os.close(descriptor)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
