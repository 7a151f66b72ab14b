"""Check a whole checkpoint and list every fault: the work behind ``ckpt verify``."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ckpt.errors import CheckpointError, CorruptFileError, FormatError, IntegrityError, RootMismatchError
from ckpt.manifest import Attachment
from ckpt.payload import Algorithm, Payload, check_all, faults_in, open_payload, read_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a verification found; true when nothing.

    Attributes:
        path: The checkpoint.
        root: Its root, None when its manifest could not be read.
        algorithm: ``"crc32"`` or ``"sha256"``.
        checked_bytes: Bytes that were read and compared.
        faults: Every fault, in the order of the files.
    """

    path: Path
    root: str | None
    algorithm: str
    checked_bytes: int
    faults: tuple[CheckpointError, ...]

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


def verify(path: Path | str, *, verify: Literal["crc32", "sha256"] = "sha256", root: str | None = None) -> Report:
    """Compare every byte of a checkpoint with its manifest.

    Args:
        path: A checkpoint folder.
        verify: ``"sha256"`` proves the content; ``"crc32"`` finds accidents several times faster.
        root: The root that must be there.

    Raises:
        NotACheckpointError: there is no manifest to compare with.
    """
    folder = Path(path)
    if verify not in ("crc32", "sha256"):
        raise ValueError(f"verify is '{verify}'; expected 'crc32' or 'sha256'")
    try:
        manifest = read_manifest(folder)
    except FormatError as error:
        return Report(path=folder, root=None, algorithm=verify, checked_bytes=0, faults=(error,))
    faults: list[CheckpointError] = []
    checked = 0
    if root is not None and manifest.root != root:
        faults.append(RootMismatchError(path=folder, found=manifest.root, expected=root))
    try:
        payload = open_payload(folder)
        faults.extend(check_all(payload, verify))
        faults.extend(_attachment_faults(payload, verify))
        checked = manifest.payload_bytes + sum(item.chunks.size_bytes for item in manifest.attachments)
    except IntegrityError as error:
        faults.append(error)
    return Report(path=folder, root=manifest.root, algorithm=verify, checked_bytes=checked, faults=tuple(faults))


def _attachment_faults(payload: Payload, algorithm: Algorithm) -> list[CheckpointError]:
    faults: list[CheckpointError] = []
    for item in payload.manifest.attachments:
        faults.extend(_faults_of(payload.folder, item, algorithm))
    return faults


def _faults_of(folder: Path, item: Attachment, algorithm: Algorithm) -> list[CheckpointError]:
    try:
        descriptor = os.open(folder / item.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return [_bad(folder, item.path, "the attachment", error.strerror or "an error", "a regular file")]
    with open(descriptor, "rb") as file:
        data = memoryview(file.read(item.chunks.size_bytes + 1))
    if len(data) != item.chunks.size_bytes:
        size = os.stat(folder / item.path).st_size
        return [_bad(folder, item.path, "the size", f"{size} bytes", f"{item.chunks.size_bytes} bytes")]
    return list(
        faults_in(
            data,
            item.chunks,
            algorithm,
            folder=folder,
            file=item.path,
            shift=0,
            owner=lambda: f"attachment '{item.path}'",
        )
    )


def _bad(folder: Path, file: str, what: str, found: str, expected: str) -> CorruptFileError:
    return CorruptFileError(folder=folder, file=file, what=what, found=found, expected=expected)
