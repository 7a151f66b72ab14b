"""A folder of what was built before: packages and programs, by everything that decides what a build makes.

An entry is a file whose name says its key, the SHA-256 of its content, and its kind; it is written beside and renamed.
The key of a package is a SHA-256 over the definition's digest (graph and shapes), the backend, the machine that is
required, and the backend's own key (flags and versions); that of a program is told in ``compiler.recall``. A damaged
entry is removed and built anew, and a folder that cannot be written to keeps nothing: a broken cache costs time and
nothing else. Either is noted.
"""

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PACKAGE: Final = "package"
PROGRAM: Final = "program"


def entry_key(*, digest: str, backend: str, requirement: str, build_key: str) -> str:
    """The name of a package that would be built."""
    return hashlib.sha256("\0".join((digest, backend, requirement, build_key)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A folder, and what a caller should hear about it: ``notes``, in words."""

    folder: Path
    notes: list[str] = field(default_factory=list)

    def find(self, key: str, *, kind: str = PACKAGE) -> bytes | None:
        """The content under this key, if the cache has it whole."""
        return next(self._whole(f"{key}-*.{kind}"), None)

    def find_package(self, sha256: str) -> bytes | None:
        """The package with this content, whatever its key."""
        return next(self._whole(f"*-{sha256}.{PACKAGE}"), None)

    def store(self, key: str, content: bytes, *, kind: str = PACKAGE) -> None:
        """Keep an entry, or note why not. Two writers of one key do not disturb each other."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(dir=self.folder, prefix=".draft-")
            with os.fdopen(handle, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # tells it from a draft whose writer was killed
                file.write(content)
                file.flush()
                Path(draft).rename(self.folder / f"{key}-{hashlib.sha256(content).hexdigest()}.{kind}")
        except OSError as error:
            self.notes.append(f"the {kind} was not kept: {error}")

    def drop(self, key: str, *, kind: str, why: str) -> None:
        """Remove what stands under a key, and note why."""
        self.notes.append(why)
        for path in self.folder.glob(f"{key}-*.{kind}"):
            _remove(path)

    def _whole(self, pattern: str) -> Iterator[bytes]:
        for path in sorted(self.folder.glob(pattern)):
            try:
                content = path.read_bytes()
            except OSError as error:  # removed by another process, or not ours to read
                self.notes.append(f"a cache entry cannot be read: {error}")
                continue
            if path.name.rpartition("-")[2] == f"{hashlib.sha256(content).hexdigest()}{path.suffix}":
                yield content
                continue
            self.notes.append(f"the cache entry '{path}' was damaged: found other bytes than its name says; removed")
            _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # another process was as fast, or it is not ours to write
        path.unlink()
