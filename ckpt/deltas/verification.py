"""Check a whole delta and list every fault; whether it fits a base is not asked, and no decoder runs."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ckpt.deltas.delta import Delta, Frame
from ckpt.deltas.patches import Patches, patch_of
from ckpt.deltas.wire import delta_in
from ckpt.disk.folder import Folder, reading
from ckpt.disk.hashing import Progress
from ckpt.errors import CheckpointError, CorruptFileError, CorruptFrameError, FormatError, RootMismatchError
from ckpt.format.names import DELTA_NAME, MANIFEST_NAME, SIGNATURES_NAME
from ckpt.reading.report import Report, files_beside
from ckpt.signatures.statements import Signatures, Statement, StatementKind, signatures_in
from ckpt.signatures.trust import Trust, accepted


def is_delta(path: Path | str) -> bool:
    """Whether a folder is a delta's, whatever is in it."""
    return os.path.lexists(Path(path, DELTA_NAME)) and not os.path.lexists(Path(path, MANIFEST_NAME))


def verify_delta(path: Path | str, *, root: str | None, trust: Trust | None, progress: Progress | None) -> Report:
    """As :func:`ckpt.verify`, of a delta folder."""
    return reading(path, lambda folder: _look(folder, root, trust, progress), expected=DELTA_NAME)


def _look(folder: Folder, root: str | None, trust: Trust | None, progress: Progress | None) -> Report:
    try:
        delta = delta_in(folder)
    except (FormatError, CorruptFileError) as error:
        return Report(path=folder.path, root=None, algorithm="sha256", checked_bytes=0, faults=(error,), foreign=())
    faults: list[CheckpointError] = []
    if root is not None and delta.target_root != root:
        faults.append(RootMismatchError(path=folder.path, found=delta.target_root, expected=root))
    statement = _accepted(folder, delta, trust, faults)
    patches = Patches(folder.path, delta, Signatures(), _files(folder, delta, faults))
    readable = [frame for frame in delta.frames() if patches.files[frame.patch]]
    faults.extend(_bad_frames(patches, readable, progress))
    return Report(
        path=folder.path,
        root=delta.target_root,
        algorithm="sha256",
        checked_bytes=sum(frame.encoded_size for frame in readable),
        faults=tuple(faults),
        foreign=files_beside(folder.path, {DELTA_NAME, SIGNATURES_NAME, *(patch.name for patch in delta.patches)}),
        accepted=statement,
    )


def _accepted(folder: Folder, delta: Delta, trust: Trust | None, faults: list[CheckpointError]) -> Statement | None:
    """What a trusted key states; the reason among the faults where there is none, or where signatures.pb is broken."""
    try:
        own = signatures_in(folder, StatementKind.DELTA).own
        if trust is None:
            return None
        return accepted(own, trust, kind=StatementKind.DELTA, subject=delta.digest, path=folder.path)
    except CheckpointError as fault:
        faults.append(fault)
        return None


def _files(folder: Folder, delta: Delta, faults: list[CheckpointError]) -> tuple[memoryview, ...]:
    """The patches; an empty view for one that cannot be used, and the reason among the faults."""
    views = []
    for patch in delta.patches:
        try:
            views.append(patch_of(folder, patch))
        except CorruptFrameError as fault:
            faults.append(fault)
            views.append(memoryview(b""))
    return tuple(views)


def _bad_frames(patches: Patches, frames: list[Frame], progress: Progress | None) -> list[CorruptFrameError]:
    def fault_of(frame: Frame) -> CorruptFrameError | None:
        try:
            patches.encoded(frame)
        except CorruptFrameError as fault:
            return fault
        return None

    faults, done, total = [], 0, sum(frame.encoded_size for frame in frames)
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ckpt-verify") as pool:
        for frame, fault in zip(frames, pool.map(fault_of, frames), strict=True):
            faults += [fault] if fault else []
            done += frame.encoded_size
            if progress is not None:
                progress(done, total)
    return faults
