"""Checkpoints on this machine, by seal: what a fetch starts from and ends in.

``checkpoints/<64 hex of the seal>`` is a whole checkpoint folder that was proved; it appears by one rename, so a
folder that is there is complete. Whoever brings or removes one holds the lock of its seal, so processes that share
the cache do the work once and never take a folder from under each other. Workspaces of killed processes are removed
by the next one.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import ckpt


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of checkpoints by seal."""

    folder: Path

    def path(self, seal: str) -> Path:
        return self.folder / "checkpoints" / seal.removeprefix("sha256:")

    def held(self) -> frozenset[str]:
        """Seals of the checkpoints that are there, sound or not."""
        return frozenset(f"sha256:{entry.name}" for entry in (self.folder / "checkpoints").glob("[0-9a-f]*"))

    @contextmanager
    def locked(self, seal: str) -> Iterator[None]:
        """Alone with a seal, among the processes that share the cache."""
        place = self.folder / "locks" / seal.removeprefix("sha256:")
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def is_sound(self, seal: str) -> bool:
        """Whether a checkpoint is there with its bytes (CRC-32); a damaged one is removed. Hold its lock."""
        place = self.path(seal)
        if not place.is_dir():
            return False
        try:
            sound = ckpt.verify(place, verify="crc32").ok and ckpt.read_manifest(place).seal == seal
        except ckpt.NotACheckpointError:
            sound = False
        if not sound:
            shutil.rmtree(place)
        return sound

    def adopt(self, made: Path, seal: str) -> Path:
        """Move a proved checkpoint to its place, unless it is there already. Hold its lock."""
        place = self.path(seal)
        if not place.is_dir():
            place.parent.mkdir(parents=True, exist_ok=True)
            made.rename(place)
        return place

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A temporary folder on the cache's own file system."""
        parent = self.folder / "work"
        parent.mkdir(parents=True, exist_ok=True)
        with open(parent / "lock", "ab") as lock:  # a folder is made and held in one step
            fcntl.flock(lock, fcntl.LOCK_EX)
            _sweep(parent)
            folder = Path(mkdtemp(dir=parent))
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
            os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove workspaces that nobody holds: their processes were killed."""
    for folder in parent.iterdir():
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue  # its owner removed it just now, or it is the lock
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        except BlockingIOError:
            pass  # a living process works in it
        finally:
            os.close(descriptor)
