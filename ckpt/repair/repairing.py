"""Mend a checkpoint from a good copy: only what is bad is fetched, proved, and written in its place.

This is the one exception to "who has a file mapped keeps its bytes": bad bytes become good ones under a reader's hands.
Nothing good is written over, so a repair that is killed is simply run again.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath

from ckpt.deltas.verification import is_delta
from ckpt.deltas.wire import delta_in
from ckpt.disk.commit import naming, place_file
from ckpt.disk.folder import Folder, IrregularFileError, open_regular, reading
from ckpt.disk.hashing import Progress
from ckpt.errors import (
    CorruptFileError,
    FormatError,
    NotACheckpointError,
    RootMismatchError,
    SignatureError,
    SourceError,
)
from ckpt.format.digests import Chunks, chunk_range, sha256
from ckpt.format.manifest import FileRecord, Manifest
from ckpt.format.names import DELTA_NAME, MANIFEST_NAME, manifest_beside
from ckpt.format.shards import headers_of
from ckpt.format.wire import manifest_from_bytes
from ckpt.reading.payload import accepted_checkpoint, manifest_in, read_manifest
from ckpt.reading.report import Report
from ckpt.reading.verification import verify
from ckpt.repair.good_copies import GoodCopy, Piece, good_copy, good_delta, pieces_of
from ckpt.signatures.statements import StatementKind, signatures_in
from ckpt.signatures.trust import Trust, Trusted, accepted, as_trust

_BATCH = 32  # pieces that are hashed, or fetched, at a time: 32 MiB
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def repair(
    path: Path | str,
    source: Path | str,
    *,
    root: str | None = None,
    trust: Trusted | None = None,
    progress: Progress | None = None,
) -> Report:
    """Restore what is bad in a checkpoint: chunks, headers, sizes, files that are missing, attachments.

    Of a delta, frames and patches are restored; a bad ``delta.pb`` is not, for it says what the others should be.

    Args:
        path: A checkpoint folder, an adopted file, or a delta folder.
        source: A good copy: a checkpoint folder, a ``.safetensors`` file or folder, or the ``http(s)`` address of one
            (of a folder, its checkpoint). It need not be the same checkpoint: what it has of the bad bytes is taken.
            Of a delta, a delta folder or its address.
        root: The root that must be there. A manifest that is missing, unreadable, or of other content than is there
            is restored from ``source`` only when this is given and the copy's manifest has it. It proves weights and
            state; attachments and metadata are then the copy's.
        trust: Whose signature must be there, as for :func:`ckpt.load`; a bad manifest is restored for it as well, when
            the signatures that lie at ``path`` are of the copy's seal. It proves attachments and metadata, too.
        progress: Called with (bytes checked, bytes in all).

    Returns:
        What :func:`ckpt.verify` finds afterwards: true when all is well, otherwise the faults that remain.

    Raises:
        SourceError: the copy cannot be read; what was fetched before is in place.
        NotACheckpointError, FormatError: no manifest can be read, and neither ``root`` nor ``trust`` was given.
        SignatureError: nobody who is trusted has signed the checkpoint, or the copy's manifest; nothing was written.
        RootMismatchError: a sound checkpoint of another root stands there, or in the copy; nothing was written.
    """
    path, trusted = Path(path), as_trust(trust)
    if is_delta(path):
        return _repair_delta(path, source, root, trusted, progress)
    with good_copy(source) as copy:
        manifests = _restore_manifest(path, copy, str(source), root, trusted)
        others = reading(path, lambda folder: _mend_all(folder, copy, progress), expected=MANIFEST_NAME)
    return replace(verify(path, root=root, trust=trusted), restored=(*manifests, *others))


def _repair_delta(
    path: Path, source: Path | str, root: str | None, trust: Trust | None, progress: Progress | None
) -> Report:
    def mend(folder: Folder) -> list[str]:
        delta = delta_in(folder)
        if root is not None and delta.target_root != root:
            raise RootMismatchError(path=path, found=delta.target_root, expected=root)
        if trust is not None:
            own = signatures_in(folder, StatementKind.DELTA).own
            accepted(own, trust, kind=StatementKind.DELTA, subject=delta.digest, path=path)
        pieces: list[list[Piece]] = [[] for _ in delta.patches]
        for frame in sorted(delta.frames(), key=lambda frame: frame.patch_offset):
            end = frame.patch_offset + frame.encoded_size
            pieces[frame.patch].append(Piece(start=frame.patch_offset, end=end, sha256=frame.sha256))
        total = sum(patch.size_bytes for patch in delta.patches)
        with good_delta(source) as copy, _Mending(folder, copy, None, total, progress) as mending:
            for patch, frames in zip(delta.patches, pieces, strict=True):
                mending.file(patch.name, patch.size_bytes, iter(frames))
        return mending.restored

    restored = reading(path, mend, expected=DELTA_NAME)
    return replace(verify(path, root=root, trust=trust), restored=tuple(restored))


def _restore_manifest(path: Path, copy: GoodCopy, source: str, root: str | None, trust: Trust | None) -> list[str]:
    try:
        known = read_manifest(path)
        refusal = _refusal(known, path, path, root, trust)
        if refusal is None:
            return []
        if verify(path).ok:
            raise refusal
    except (NotACheckpointError, FormatError, CorruptFileError) as error:
        if root is None and trust is None:
            error.add_note("A manifest is restored only for what you expect: root=, trust= (--root, --trust).")
        if (root is None and trust is None) or not (path.is_dir() or path.is_file()):
            raise
    if copy.manifest is None:
        raise SourceError(source, "no manifest.pb", "one, to restore that of the checkpoint")
    manifest = manifest_from_bytes(copy.manifest, MANIFEST_NAME)
    refusal = _refusal(manifest, Path(source), path, root, trust)
    if refusal is not None:
        raise refusal
    if not path.is_dir() and [record.name for record in manifest.files] != [path.name]:
        raise SourceError(source, "a manifest of other files", f"one of '{path.name}' alone")
    target = path / MANIFEST_NAME if path.is_dir() else path.with_name(manifest_beside(path.name))
    place_file(target, copy.manifest, replace=True)
    return [f"{target.name}: {len(copy.manifest)} bytes"]


def _refusal(
    manifest: Manifest, where: Path, path: Path, root: str | None, trust: Trust | None
) -> RootMismatchError | SignatureError | None:
    """Why a manifest from ``where`` is not the one that ``path`` is to have, by root or by its signatures."""
    if root is not None and manifest.root != root:
        return RootMismatchError(path=where, found=manifest.root, expected=root)

    def accepted(folder: Folder) -> None:
        if trust is not None:
            accepted_checkpoint(signatures_in(folder, StatementKind.CHECKPOINT).own, trust, manifest, folder)

    try:
        reading(path, accepted, expected=MANIFEST_NAME)
    except SignatureError as error:
        return error
    return None


def _mend_all(folder: Folder, copy: GoodCopy, progress: Progress | None) -> list[str]:
    manifest = manifest_in(folder)
    headers = {} if manifest.adopted else headers_of(manifest)
    lying: list[list[int]] = [[] for _ in manifest.files]
    for index, place in enumerate(manifest.placements):
        lying[place.file].append(index)
    total = sum(record.size_bytes for record in manifest.files)
    total += sum(item.chunks.size_bytes for item in manifest.attachments)
    with _Mending(folder, copy, manifest, total, progress) as mending:
        for record, storages in zip(manifest.files, lying, strict=True):
            mending.file(record.name, record.size_bytes, _pieces(manifest, record, headers.get(record.name), storages))
        for item in manifest.attachments:
            mending.file(item.path, item.chunks.size_bytes, _attached(item.chunks))
    return mending.restored


def _pieces(manifest: Manifest, record: FileRecord, header: bytes | None, storages: Sequence[int]) -> Iterator[Piece]:
    yield Piece(start=0, end=record.header_bytes, sha256=record.header_sha256, known=header)
    for index in storages:
        yield from pieces_of(manifest, index)


def _attached(chunks: Chunks) -> Iterator[Piece]:
    for chunk in range(chunks.count):
        start, end = chunk_range(chunk, chunks.size_bytes)
        yield Piece(start=start, end=end, sha256=chunks.sha256_of(chunk))


class _Mending:
    """One pass over the files of a checkpoint, which has a manifest, or of a delta; holds the threads that hash."""

    def __init__(
        self, folder: Folder, copy: GoodCopy, manifest: Manifest | None, total: int, progress: Progress | None
    ) -> None:
        self._folder, self._copy, self._manifest, self._progress = folder, copy, manifest, progress
        self._pool = ThreadPoolExecutor(min(os.cpu_count() or 1, 16), thread_name_prefix="ckpt-repair")
        self._total, self._done = total, 0
        self.restored: list[str] = []

    def __enter__(self) -> "_Mending":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def file(self, name: str, size: int, pieces: Iterator[Piece]) -> None:
        """Mend one file; what is no regular file is left for the report to tell."""
        try:
            descriptor = open_regular(name, self._folder.descriptor, self._folder.place)
        except FileNotFoundError:
            self._write(name, size, [*pieces])
            self._advance(size)
            return
        except IrregularFileError:
            return
        with naming(self._folder.place / name):
            try:
                bad = [piece for batch in _batches(pieces) for piece in self._bad(descriptor, batch)]
                other_size = os.fstat(descriptor).st_size != size
            finally:
                os.close(descriptor)
        if bad or other_size:
            self._write(name, size, bad)

    def _bad(self, descriptor: int, pieces: Sequence[Piece]) -> list[Piece]:
        def is_good(piece: Piece) -> bool:
            data = os.pread(descriptor, piece.end - piece.start, piece.start)
            return len(data) == piece.end - piece.start and sha256(data) == piece.sha256

        found = [piece for piece, good in zip(pieces, self._pool.map(is_good, pieces), strict=True) if not good]
        self._advance(sum(piece.end - piece.start for piece in pieces))
        return found

    def _advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _write(self, name: str, size: int, bad: Sequence[Piece]) -> None:
        with naming(self._folder.place / name), _opened_to_write(name, self._folder) as descriptor:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, size)
            restored = 0
            for batch in _batches(iter(bad)):
                for piece, data in self._copy.fetch(batch, self._manifest):
                    done = 0
                    while done < len(data):
                        done += os.pwrite(descriptor, data[done:], piece.start + done)
                    restored += len(data)
        self.restored.append(f"{name}: {restored} bytes")


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    while batch := list(islice(pieces, _BATCH)):
        yield batch


@contextmanager
def _opened_to_write(name: str, folder: Folder) -> Iterator[int]:
    """The file, made where it is missing and reached without following a link; on disk when the block ends."""
    *parents, last = PurePosixPath(name).parts
    held = os.dup(folder.descriptor)
    try:
        for parent in parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, dir_fd=held)
                os.fsync(held)
            inner = os.open(parent, _FOLDER, dir_fd=held)
            os.close(held)
            held = inner
        descriptor = os.open(last, _FILE, 0o666, dir_fd=held)
        try:
            yield descriptor
        finally:
            os.fsync(descriptor)
            os.close(descriptor)
            os.fsync(held)
    finally:
        os.close(held)
