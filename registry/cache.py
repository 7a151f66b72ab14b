"""Checkpoints on this machine, by seal: what a fetch starts from and ends in.

``checkpoints/<64 hex of the seal>`` is a whole, verified checkpoint folder; it appears by one rename, so a folder
that is there is complete. Two processes that fetch the same seal at once both end with the same folder.
"""

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
        """Seals of the checkpoints that are there."""
        return frozenset(f"sha256:{entry.name}" for entry in (self.folder / "checkpoints").glob("[0-9a-f]*"))

    def adopt(self, made: Path, seal: str) -> Path:
        """Move a finished checkpoint to its place; another process may have been first."""
        place = self.path(seal)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            made.rename(place)
        except OSError:
            if not place.is_dir():
                raise
        return place

    def forget(self, seal: str) -> None:
        """Remove a checkpoint that turned out to be damaged, so that the next fetch brings it anew."""
        shutil.rmtree(self.path(seal))

    def add(self, checkpoint: Path, seal: str) -> Path:
        """Keep a copy of a local checkpoint: what was just published need not be downloaded."""
        if not self.path(seal).is_dir():
            with self.workspace() as folder:
                shutil.copytree(checkpoint, folder / "copy")
                ckpt.verify(folder / "copy").raise_on_fault()
                self.adopt(folder / "copy", seal)
        return self.path(seal)

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A temporary folder on the cache's own file system."""
        parent = self.folder / "work"
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
