"""Check a whole checkpoint, or a delta, and list every fault: the work behind ``ckpt verify``."""

from pathlib import Path

from ckpt.deltas.verification import is_delta, verify_delta
from ckpt.disk.folder import Folder, reading
from ckpt.disk.hashing import Progress
from ckpt.errors import CheckpointError, CorruptFileError, FormatError, RootMismatchError
from ckpt.format.manifest import Manifest
from ckpt.format.names import MANIFEST_NAME, SIGNATURES_NAME
from ckpt.reading.payload import (
    Algorithm,
    Payload,
    accepted_checkpoint,
    check_all,
    expected_headers,
    faults_in_attachment,
    manifest_in,
    open_file,
)
from ckpt.reading.report import Report, files_beside
from ckpt.signatures.statements import Statement, StatementKind, signatures_in
from ckpt.signatures.trust import Trust, Trusted, as_trust


def verify(
    path: Path | str,
    *,
    verify: Algorithm = "sha256",
    root: str | None = None,
    trust: Trusted | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compare every byte of a checkpoint with its manifest, or of a delta with the SHA-256s of its frames.

    Args:
        path: A checkpoint folder, an adopted file, or a delta folder.
        verify: ``"sha256"`` proves the content; ``"crc32"`` finds accidents several times faster. Of a delta it is
            always SHA-256.
        root: The root that must be there; of a delta, that of what it makes.
        trust: Whose signature must be there; a :class:`Trust`, or public keys.
        progress: Called with (bytes of tensors checked, bytes in all) while there is more than a little to check.

    Raises:
        NotACheckpointError: there is no manifest to compare with.
        OSError: a file cannot be read, which says nothing of its bytes.
        ValueError: a weaker level than ``"sha256"`` with ``trust``.
    """
    if verify not in ("crc32", "sha256"):
        raise ValueError(f"verify is '{verify}'; expected 'crc32' or 'sha256'")
    trusted = as_trust(trust)
    if trusted is not None and verify != "sha256":
        raise ValueError(f"verify is '{verify}' with trust; expected 'sha256', since a signature vouches for no CRC")

    def look(folder: Folder) -> Report:
        report = _look(folder, verify, root, trusted, progress)
        if report.faults and folder.was_replaced():  # they are those of a folder that is being removed
            report.raise_on_fault()
        return report

    if is_delta(path):
        return verify_delta(path, root=root, trust=trusted, progress=progress)
    return reading(path, look, expected=MANIFEST_NAME)


def _look(
    folder: Folder, algorithm: Algorithm, root: str | None, trust: Trust | None, progress: Progress | None
) -> Report:
    try:
        manifest = manifest_in(folder)
    except (FormatError, CorruptFileError) as error:
        return Report(path=folder.path, root=None, algorithm=algorithm, checked_bytes=0, faults=(error,), foreign=())
    faults: list[CheckpointError] = []
    if root is not None and manifest.root != root:
        faults.append(RootMismatchError(path=folder.path, found=manifest.root, expected=root))
    statement = _accepted(folder, manifest, trust, faults)
    payload = Payload(folder=folder.path, manifest=manifest, files=_files(folder, manifest, faults))
    readable = [index for index, place in enumerate(manifest.placements) if payload.files[place.file]]
    faults.extend(check_all(payload, algorithm, readable, keep=False, progress=progress))
    checked = sum(manifest.storages[index].size_bytes for index in readable)
    for item in manifest.attachments:
        try:
            data = folder.view(item.path, size_bytes=item.chunks.size_bytes)
        except CorruptFileError as fault:
            faults.append(fault)
            continue
        faults.extend(faults_in_attachment(folder.path, item, data, algorithm))
        checked += len(data)
    return Report(
        path=folder.path,
        root=manifest.root,
        algorithm=algorithm,
        checked_bytes=checked,
        faults=tuple(faults),
        foreign=() if folder.alone else foreign_files(folder.path, manifest),
        accepted=statement,
    )


def _accepted(
    folder: Folder, manifest: Manifest, trust: Trust | None, faults: list[CheckpointError]
) -> Statement | None:
    """What a trusted key states; the reason among the faults where there is none, or where signatures.pb is broken."""
    try:
        signed = signatures_in(folder, StatementKind.CHECKPOINT).own
        return None if trust is None else accepted_checkpoint(signed, trust, manifest, folder)
    except CheckpointError as fault:
        faults.append(fault)
        return None


def _files(folder: Folder, manifest: Manifest, faults: list[CheckpointError]) -> tuple[memoryview, ...]:
    """The payload files; an empty view for one that cannot be used, and the reason among the faults."""
    headers = expected_headers(manifest)
    views = []
    for record in manifest.files:
        try:
            views.append(open_file(folder, record, headers[record.name]))
        except CorruptFileError as fault:
            faults.append(fault)
            views.append(memoryview(b""))
    return tuple(views)


def foreign_files(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """Paths below a folder that are no part of its checkpoint; folders are told only where they are links."""
    payload, attached = (record.name for record in manifest.files), (item.path for item in manifest.attachments)
    return files_beside(folder, {MANIFEST_NAME, SIGNATURES_NAME, *payload, *attached})
