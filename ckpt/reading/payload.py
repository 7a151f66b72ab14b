"""The bytes of an opened checkpoint: its files mapped or read, checked for size and header, sliced into storages.

Storages are given as writable private memory: a change stays in this process. Chunks are compared with their digests
where someone asks, by all cores where it is many of them; how a file may be opened is the business of
:mod:`ckpt.disk.folder`.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from ckpt.collector import without_collection
from ckpt.disk.folder import Folder, Unread, forget, reading
from ckpt.disk.hashing import Progress
from ckpt.errors import CorruptChunkError, FormatError
from ckpt.format.adopted_header import Header, parse, stated
from ckpt.format.digests import CHUNK_BYTES, Chunks, chunk_range, crc32, sha256
from ckpt.format.manifest import Attachment, FileRecord, Manifest
from ckpt.format.names import MANIFEST_NAME, manifest_beside
from ckpt.format.rules import check
from ckpt.format.shards import headers_of
from ckpt.format.wire import MAX_FILE_BYTES, manifest_from_bytes
from ckpt.signatures.statements import Signed, Statement, StatementKind, signatures_in
from ckpt.signatures.trust import Trust, accepted

Algorithm = Literal["crc32", "sha256"]
Fill = Callable[[int, int], None]  # reads the bytes from one place to another, end excluded

_BLOCK_BYTES = 256 << 10
_TASK_BYTES = 16 * CHUNK_BYTES  # enough to keep a thread busy, few enough to share a large storage
_LET_GO_BYTES = 32 * CHUNK_BYTES  # what all threads together have in memory where pages are let go of


def read_manifest(path: Path | str) -> Manifest:
    """The manifest at a path, with every rule checked; the payload is not looked at.

    Raises:
        NotACheckpointError: there is none.
        FormatError: it breaks a rule.
    """
    return reading(path, manifest_in, expected=MANIFEST_NAME)


@without_collection()
def manifest_in(folder: Folder) -> Manifest:
    """As :func:`read_manifest`, of an opened folder."""
    name = manifest_beside(folder.alone) if folder.alone else MANIFEST_NAME
    data = folder.read(name, at_most=MAX_FILE_BYTES)
    manifest = manifest_from_bytes(data, str(folder.place / name))
    check(manifest)
    if folder.alone and ([record.name for record in manifest.files] != [folder.alone] or manifest.attachments):
        raise FormatError(f"'{name}'", "other files", f"'{folder.alone}' alone")
    return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A manifest and the memory of its files, in the order of ``manifest.files``.

    ``unread`` are the files where they are not mapped: a storage is zeros until :meth:`fill` has read it.
    ``attachments`` are those of the manifest, in its order, and ``signatures`` those beside it, where they were asked
    for; ``accepted`` is the statement that a trusted key made, where one was to be there.
    """

    folder: Path
    manifest: Manifest
    files: tuple[memoryview, ...]
    unread: tuple[Unread, ...] = ()
    attachments: tuple[memoryview, ...] = ()
    signatures: tuple[Signed, ...] = ()
    accepted: Statement | None = None

    def storage(self, index: int) -> memoryview:
        place, size = self.manifest.placements[index], self.manifest.storages[index].size_bytes
        return self.files[place.file][place.offset : place.offset + size]

    def fill(self, index: int, start: int, end: int) -> None:
        """Read some bytes of a storage into its memory; where files are not mapped."""
        place = self.manifest.placements[index]
        self.unread[place.file].read(place.offset + start, place.offset + end)

    def prove(self, index: int, chunk: int, data: memoryview) -> None:
        """Raise unless ``data``, read as a chunk of a storage, has its SHA-256."""
        place, chunks = self.manifest.placements[index], self.manifest.storages[index]
        found = hashlib.sha256(data).hexdigest()
        if found != chunks.sha256_of(chunk).hex():
            raise _fault(
                chunks,
                chunk,
                "sha256",
                found,
                folder=self.folder,
                file=self.manifest.files[place.file].name,
                shift=place.offset,
                owner=self.manifest.owner(index),
            )

    def prove_attachment(self, index: int) -> None:
        """Raise on the first chunk of an attachment that does not have its SHA-256."""
        item = self.manifest.attachments[index]
        for fault in faults_in_attachment(self.folder, item, self.attachments[index], "sha256"):
            raise fault

    def close(self) -> None:
        """Close the files that were to be read; the memory stays."""
        for unread in self.unread:
            unread.close()


def open_payload(
    path: Path | str,
    *,
    mapped: bool = True,
    attachments: bool = False,
    signatures: bool = False,
    trust: Trust | None = None,
) -> Payload:
    """Open every file of a checkpoint.

    Args:
        path: The folder.
        mapped: Map the files (pages are read when touched); False gives memory that is to be filled.
        attachments: Open the attachments too.
        signatures: Read the signatures too.
        trust: Whose signature must be there; checked before a payload file is opened.

    Raises:
        NotACheckpointError: no manifest there.
        FormatError: the manifest breaks a rule.
        SignatureError: nobody who is trusted has signed its seal.
        CorruptFileError: a file is missing, or has another size or header than the manifest states.
    """

    def read(folder: Folder) -> Payload:
        manifest = manifest_in(folder)
        signed = signatures_in(folder, StatementKind.CHECKPOINT).own if signatures or trust is not None else ()
        statement = None if trust is None else accepted_checkpoint(signed, trust, manifest, folder)
        headers = expected_headers(manifest)
        unread = () if mapped else _unread_files(folder, manifest, headers)
        return Payload(
            folder=folder.path,
            manifest=manifest,
            files=tuple(file.view for file in unread)
            or tuple(open_file(folder, record, headers[record.name]) for record in manifest.files),
            unread=unread,
            attachments=tuple(
                folder.view(item.path, size_bytes=item.chunks.size_bytes)
                for item in (manifest.attachments if attachments else ())
            ),
            signatures=signed,
            accepted=statement,
        )

    return reading(path, read, expected=MANIFEST_NAME)


def accepted_checkpoint(signed: Sequence[Signed], trust: Trust, manifest: Manifest, folder: Folder) -> Statement:
    """The statement of a trusted key about a checkpoint's seal; raises as :func:`ckpt.signatures.trust.accepted`."""
    return accepted(signed, trust, kind=StatementKind.CHECKPOINT, subject=manifest.seal, path=folder.path)


@without_collection()
def expected_headers(manifest: Manifest) -> Mapping[str, bytes | Header]:
    """What each file must begin with: its bytes, or of an adopted file what they must say."""
    return stated(manifest) if manifest.adopted else headers_of(manifest)


def open_file(folder: Folder, record: FileRecord, header: bytes | Header) -> memoryview:
    """One payload file, mapped; its header compared with the expected one, that of an adopted file parsed for it."""
    view = folder.view(record.name, size_bytes=record.size_bytes)
    _check_header(folder, record, view[: record.header_bytes], header)
    return view


def _unread_files(folder: Folder, manifest: Manifest, headers: Mapping[str, bytes | Header]) -> tuple[Unread, ...]:
    """The payload files with only their headers read, and compared as by :func:`open_file`."""
    with ExitStack() as stack:
        files = tuple(
            stack.enter_context(closing(folder.unread(record.name, size_bytes=record.size_bytes)))
            for record in manifest.files
        )
        for file, record in zip(files, manifest.files, strict=True):
            file.read(0, record.header_bytes)
            _check_header(folder, record, file.view[: record.header_bytes], headers[record.name])
        stack.pop_all()
    return files


def _check_header(folder: Folder, record: FileRecord, found: memoryview, header: bytes | Header) -> None:
    if sha256(found) != record.header_sha256:
        raise folder.fault(record.name, "the header", f"sha256 {sha256(found).hex()}", record.header_sha256.hex())
    if (found if isinstance(header, bytes) else _parsed(folder, record, found)) != header:
        raise folder.fault(record.name, "the header", "other names, shapes or places", "those of the manifest")


def _parsed(folder: Folder, record: FileRecord, header: memoryview) -> Header:
    try:
        return parse(header, name=record.name, size_bytes=record.size_bytes)
    except FormatError as error:
        raise folder.fault(record.name, "the header", str(error.found), str(error.expected)) from None


def faults_in_storage(
    payload: Payload, index: int, algorithm: Algorithm, *, chunks: range
) -> Iterator[CorruptChunkError]:
    """Each of some chunks of a storage that does not have its digest."""
    manifest = payload.manifest
    place = manifest.placements[index]
    yield from _faults_in(
        payload.storage(index),
        manifest.storages[index],
        algorithm,
        folder=payload.folder,
        file=manifest.files[place.file].name,
        shift=place.offset,
        owner=lambda: manifest.owner(index),
        chunks=chunks,
        fill=partial(payload.fill, index) if payload.unread else None,
    )


def faults_in_attachment(
    folder: Path, item: Attachment, data: memoryview, algorithm: Algorithm
) -> Iterator[CorruptChunkError]:
    """Each chunk of an attachment that does not have its digest; its pages are let go of."""
    for chunk in range(item.chunks.count):
        yield from _faults_in(
            data,
            item.chunks,
            algorithm,
            folder=folder,
            file=item.path,
            shift=0,
            owner=lambda: f"attachment '{item.path}'",
            chunks=range(chunk, chunk + 1),
        )
        start, end = chunk_range(chunk, len(data))
        forget(data[start:end])


def _faults_in(
    view: memoryview,
    expected: Chunks,
    algorithm: Algorithm,
    *,
    folder: Path,
    file: str,
    shift: int,
    owner: Callable[[], str],
    chunks: range,
    fill: Fill | None = None,
) -> Iterator[CorruptChunkError]:
    """Compare a run of bytes with its digests; ``shift`` is its place in the file, for messages."""
    for chunk in chunks:
        start, end = chunk_range(chunk, expected.size_bytes)
        found = _digest(_blocks(view, start, end, fill), algorithm)
        if found != _expected(expected, chunk, algorithm):
            yield _fault(expected, chunk, algorithm, found, folder=folder, file=file, shift=shift, owner=owner())


def _expected(chunks: Chunks, chunk: int, algorithm: Algorithm) -> str:
    return f"{chunks.crc32_of(chunk):08x}" if algorithm == "crc32" else chunks.sha256_of(chunk).hex()


def _fault(
    chunks: Chunks, chunk: int, algorithm: Algorithm, found: str, *, folder: Path, file: str, shift: int, owner: str
) -> CorruptChunkError:
    start, end = chunk_range(chunk, chunks.size_bytes)
    return CorruptChunkError(
        owner=owner,
        chunk=chunk,
        folder=folder,
        file=file,
        start=shift + start,
        end=shift + end,
        algorithm=algorithm,
        found=found,
        expected=_expected(chunks, chunk, algorithm),
    )


def _blocks(view: memoryview, start: int, end: int, fill: Fill | None) -> Iterator[memoryview]:
    """A chunk as it lies; where it is to be read first, in blocks that are in the cache still when they are hashed."""
    if fill is None:
        yield view[start:end]
        return
    for low in range(start, end, _BLOCK_BYTES):
        high = min(low + _BLOCK_BYTES, end)
        fill(low, high)
        yield view[low:high]


def _digest(blocks: Iterator[memoryview], algorithm: Algorithm) -> str:
    if algorithm == "sha256":
        sha = hashlib.sha256()
        for block in blocks:
            sha.update(block)
        return sha.hexdigest()
    crc = 0
    for block in blocks:
        crc = crc32(block, crc)
    return f"{crc:08x}"


def check_all(
    payload: Payload,
    algorithm: Algorithm | None,
    indices: Sequence[int] | None = None,
    *,
    keep: bool = True,
    progress: Progress | None = None,
) -> Iterator[CorruptChunkError]:
    """Faults of many storages, found by all cores; in storage order. What was not read yet is read for it.

    Args:
        payload: What to look at.
        algorithm: Which digests to compare; None reads alone.
        indices: Storages; all by default.
        keep: Whether the pages will be used; False lets go of them, so that memory stays bounded.
        progress: Called with (bytes checked, bytes in all) while there is more than a little to check.
    """
    wanted = range(len(payload.manifest.storages)) if indices is None else indices
    cores = os.cpu_count() or 1
    most = _TASK_BYTES if keep else min(max(_LET_GO_BYTES // cores // CHUNK_BYTES, 1) * CHUNK_BYTES, _TASK_BYTES)
    tasks = list(_tasks([(index, payload.manifest.storages[index].size_bytes) for index in wanted], most))
    if len(tasks) == 1:  # no thread starts as fast as a small checkpoint is checked
        yield from _faults(payload, algorithm, tasks[0], keep)
        return
    done, total = 0, sum(payload.manifest.storages[index].size_bytes for index in wanted)
    with ThreadPoolExecutor(cores, thread_name_prefix="ckpt-verify") as pool:
        running = [pool.submit(_faults, payload, algorithm, task, keep) for task in tasks]
        for task, pending in zip(tasks, running, strict=True):
            yield from pending.result()
            done += CHUNK_BYTES * sum(len(chunks) for _, chunks in task)
            if progress is not None:
                progress(min(done, total), total)


_Part = tuple[int, range]  # a storage and some of its chunks


def _faults(payload: Payload, algorithm: Algorithm | None, parts: list[_Part], keep: bool) -> list[CorruptChunkError]:
    faults: list[CorruptChunkError] = []
    for index, chunks in parts:
        if algorithm is None:
            size = payload.manifest.storages[index].size_bytes
            payload.fill(index, chunks.start * CHUNK_BYTES, min(chunks.stop * CHUNK_BYTES, size))
            continue
        faults += faults_in_storage(payload, index, algorithm, chunks=chunks)
        if not keep:
            forget(payload.storage(index)[chunks.start * CHUNK_BYTES : chunks.stop * CHUNK_BYTES])
    return faults


def _tasks(sizes: Sequence[tuple[int, int]], most: int) -> Iterator[list[_Part]]:
    """Storages cut or put together so that each task has about ``most`` bytes; one without bytes counts, too."""
    task: list[_Part] = []
    weight = 0
    for index, size in sizes:
        for start in range(0, max(size, 1), most):
            part = min(size - start, most)
            task.append((index, range(start // CHUNK_BYTES, -(-(start + part) // CHUNK_BYTES))))
            weight += part + CHUNK_BYTES // 64  # what one more storage costs beside its bytes
            if weight >= most:
                yield task
                task, weight = [], 0
    if task:
        yield task
