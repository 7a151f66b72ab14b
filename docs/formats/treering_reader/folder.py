"""One opened folder: every file is reached through its descriptor, and none through a link.

Only regular files are opened, and opening one never waits. When a file is not as stated and another folder stands at
the path by then, a writer has replaced it meanwhile: the caller begins again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TypeVar

from treering_reader.faults import FaultError, demand

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ATTEMPTS = 16

T = TypeVar("T")


class Folder:
    """An opened folder; ``read`` gives the bytes of a file in it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def has(self, name: str) -> bool:
        """Whether anything bears the name."""
        try:
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str, *, at_most: int, exactly: int | None = None) -> bytes:
        """The bytes of a regular file, its size compared before one is read.

        Raises:
            FaultError: ``missing-file``, ``not-a-file``, ``file-size`` or ``size-beyond-limit``.
        """
        descriptor = self._open(name)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor).st_size
            if exactly is not None:
                demand(found == exactly, "file-size", f"{name!r} has {found} bytes, expected {exactly}")
            demand(found <= at_most, "size-beyond-limit", f"{name!r} has {found} bytes")
            return file.read(at_most)

    def _open(self, name: str) -> int:
        *parents, last = name.split("/")
        held = os.dup(self._descriptor)
        try:
            for parent in parents:
                inner = os.open(parent, _FOLDER | os.O_NOFOLLOW, dir_fd=held)
                os.close(held)
                held = inner
            descriptor = os.open(last, _FILE, dir_fd=held)
        except FileNotFoundError:
            raise FaultError("missing-file", f"{name!r} is not there") from None
        except OSError as error:
            raise FaultError("not-a-file", f"{name!r}: {error.strerror}") from None
        finally:
            os.close(held)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise FaultError("not-a-file", f"{name!r} is no regular file")

    def stands_at(self, path: str) -> bool:
        """Whether the path still leads to this folder."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._descriptor))
        except OSError:
            return True


def reading(path: str, read: Callable[[Folder], T]) -> T:
    """What ``read`` makes of the folder at a path, from the start again when the folder was replaced meanwhile."""
    for attempt in range(_ATTEMPTS):
        try:
            descriptor = os.open(path, _FOLDER)
        except OSError as error:
            raise FaultError("no-manifest", f"no folder at {path!r}: {error.strerror}") from None
        opened = Folder(descriptor)
        try:
            return read(opened)
        except FaultError:
            if attempt == _ATTEMPTS - 1 or opened.stands_at(path):
                raise
        finally:
            os.close(descriptor)
    raise AssertionError("the last attempt returns or raises")
