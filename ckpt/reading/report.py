"""What a verification found, of a checkpoint or of a delta."""

import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ckpt.errors import CheckpointError
from ckpt.reading.payload import Algorithm
from ckpt.signatures.statements import Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a verification found; true when nothing.

    Attributes:
        path: The checkpoint or delta.
        root: Its root, of a delta that of what it makes; None when its manifest or ``delta.pb`` could not be read.
        algorithm: ``"crc32"`` or ``"sha256"``.
        checked_bytes: Bytes that were read and compared.
        faults: Every fault: signatures, files, then chunks of storages, then attachments; or frames.
        foreign: Files in the folder that are no part of it; no fault, but nobody vouches for them.
        restored: What :func:`ckpt.repair` wrote: files, and bytes of them.
        accepted: With ``trust``, the statement of a trusted key about it; None where there is none.
    """

    path: Path
    root: str | None
    algorithm: Algorithm
    checked_bytes: int
    faults: tuple[CheckpointError, ...]
    foreign: tuple[str, ...]
    accepted: Statement | None = None
    restored: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.faults

    def __bool__(self) -> bool:
        return self.ok

    def raise_on_fault(self) -> None:
        """Raise the first fault, with the number of the others noted on it."""
        if self.faults:
            first = self.faults[0]
            if len(self.faults) > 1:
                first.add_note(f"and {len(self.faults) - 1} more; 'python -m ckpt verify {self.path}' lists them all")
            raise first


def files_beside(folder: Path, known: Container[str]) -> tuple[str, ...]:
    """Paths below a folder that are none of the known ones; folders are told only where they are links."""
    walked = os.walk(folder, onerror=_refuse)  # rglob passes over what it may not look into
    found = sorted(Path(parent, name) for parent, folders, files in walked for name in (*folders, *files))
    others = (str(path.relative_to(folder)) for path in found if path.is_symlink() or not path.is_dir())
    return tuple(name for name in others if name not in known)


def _refuse(error: OSError) -> NoReturn:
    raise error
