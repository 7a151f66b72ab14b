"""A folder of packages already built, by everything that decides what a build makes.

The key is a SHA-256 over the definition's digest (graph and shapes), the backend, the machine that is required, and the
backend's own key (flags and versions). An entry
is a package and its SHA-256 in one file name, written beside and renamed; one whose bytes do not match is not used and
is built anew, so a broken cache costs time and nothing else.
"""

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path


def entry_key(*, digest: str, backend: str, requirement: str, build_key: str) -> str:
    """The name of what would be built."""
    return hashlib.sha256("\0".join((digest, backend, requirement, build_key)).encode()).hexdigest()


def find(folder: Path, key: str) -> bytes | None:
    """The package of this key, if the cache has it whole."""
    for path in sorted(folder.glob(f"{key}-*.package")):
        content = path.read_bytes()
        if path.name == _file_name(key, content):
            return content
    return None


def store(folder: Path, key: str, content: bytes) -> None:
    """Keep a package. Two writers of one key do not disturb each other."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=folder, prefix=".draft-")
    with os.fdopen(handle, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # tells it from a draft whose writer was killed
        file.write(content)
        file.flush()
        Path(draft).rename(folder / _file_name(key, content))


def _file_name(key: str, content: bytes) -> str:
    return f"{key}-{hashlib.sha256(content).hexdigest()}.package"
