"""The bytes of an opened checkpoint: its files mapped or read, checked for size and header, sliced into storages.

A reader opens the folder first and every file through it, so that it sees one checkpoint even while another process
replaces the folder. Storages are given as writable private memory: a change stays in this process.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ckpt.digests import Chunks, chunk_range, crc32, sha256
from ckpt.errors import CorruptChunkError, CorruptFileError, NotACheckpointError
from ckpt.manifest import FileRecord, Manifest
from ckpt.rules import MANIFEST_NAME, check
from ckpt.shards import headers_of
from ckpt.wire import manifest_from_bytes, read_bounded

Algorithm = Literal["crc32", "sha256"]
_REOPENINGS = 16


def read_manifest(path: Path | str) -> Manifest:
    """The manifest at a path, with every rule checked; the payload is not looked at.

    Raises:
        NotACheckpointError: there is none.
        FormatError: it breaks a rule.
    """
    folder = Path(path)
    try:
        data = read_bounded(folder / MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError):
        raise NotACheckpointError(folder, _what_stands_at(folder)) from None
    return _checked(data, folder)


def _checked(data: bytes, folder: Path) -> Manifest:
    manifest = manifest_from_bytes(data, str(folder / MANIFEST_NAME))
    check(manifest)
    return manifest


def _what_stands_at(folder: Path) -> str:
    if not folder.exists():
        return "nothing"
    return "a folder without one" if folder.is_dir() else "a file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A manifest and the memory of its files, in the order of ``manifest.files``."""

    folder: Path
    manifest: Manifest
    files: tuple[memoryview, ...]

    def storage(self, index: int) -> memoryview:
        place, size = self.manifest.placements[index], self.manifest.storages[index].size_bytes
        return self.files[place.file][place.offset : place.offset + size]


def open_payload(path: Path | str, *, mapped: bool = True) -> Payload:
    """Open every file of a checkpoint.

    Args:
        path: The folder.
        mapped: Map the files (pages are read when touched); False reads them into memory now.

    Raises:
        NotACheckpointError: no manifest there.
        FormatError: the manifest breaks a rule.
        CorruptFileError: a file is missing, or has another size or header than the manifest states.
    """
    folder = Path(path)
    for _ in range(_REOPENINGS):
        payload = _open_once(folder, mapped)
        if payload is not None:
            return payload
    raise CorruptFileError(
        folder=folder,
        file=MANIFEST_NAME,
        what="the folder",
        found=f"another one at each of {_REOPENINGS} openings",
        expected="a checkpoint that stays",
    )


def _open_once(folder: Path, mapped: bool) -> Payload | None:
    """One try; None when the folder was replaced between two openings."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NotACheckpointError(folder, _what_stands_at(folder)) from None
    try:
        return _open_in(folder, descriptor, mapped)
    finally:
        os.close(descriptor)


def _open_in(folder: Path, descriptor: int, mapped: bool) -> Payload | None:
    try:
        data = read_bounded(Path(MANIFEST_NAME), dir_fd=descriptor)
    except FileNotFoundError:
        if _was_replaced(folder, descriptor):
            return None
        raise NotACheckpointError(folder, _what_stands_at(folder)) from None
    manifest = _checked(data, folder)
    headers = headers_of(manifest)
    views = []
    for record in manifest.files:
        try:
            file = os.open(record.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=descriptor)
        except OSError as error:
            if _was_replaced(folder, descriptor):
                return None
            raise _bad(folder, record, "the file", error.strerror or "an error", "a regular file") from None
        try:
            views.append(_view(folder, record, file, mapped))
        finally:
            os.close(file)
        _check_header(folder, record, views[-1], headers[record.name])
    return Payload(folder=folder, manifest=manifest, files=tuple(views))


def _was_replaced(folder: Path, descriptor: int) -> bool:
    try:
        now = os.stat(folder)
    except FileNotFoundError:
        return False
    return not os.path.samestat(now, os.fstat(descriptor))


def _view(folder: Path, record: FileRecord, file: int, mapped: bool) -> memoryview:
    size = os.fstat(file).st_size
    if size != record.size_bytes:
        raise _bad(folder, record, "the size", f"{size} bytes", f"{record.size_bytes} bytes")
    if size == 0:
        return memoryview(bytearray())
    if mapped:
        return memoryview(mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    # Anonymous memory, so that the pages are aligned as mapped ones are.
    view = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    done = 0
    while done < size:
        count = os.preadv(file, [view[done:]], done)
        if count == 0:
            raise _bad(folder, record, "the size", f"{done} bytes", f"{size} bytes")
        done += count
    return view


def _check_header(folder: Path, record: FileRecord, view: memoryview, derived: bytes) -> None:
    found = view[: record.header_bytes]
    if sha256(found) != record.header_sha256:
        raise _bad(folder, record, "the header", f"sha256 {sha256(found).hex()}", record.header_sha256.hex())
    if found != derived:
        raise _bad(folder, record, "the header", "other names, shapes or places", "those of the manifest")


def _bad(folder: Path, record: FileRecord, what: str, found: str, expected: str) -> CorruptFileError:
    return CorruptFileError(folder=folder, file=record.name, what=what, found=found, expected=expected)


def faults_in_storage(
    payload: Payload, index: int, algorithm: Algorithm, *, chunks: range | None = None
) -> Iterator[CorruptChunkError]:
    """Each chunk of a storage that does not have its digest; ``chunks`` limits the look to some."""
    manifest = payload.manifest
    place = manifest.placements[index]
    yield from faults_in(
        payload.storage(index),
        manifest.storages[index],
        algorithm,
        folder=payload.folder,
        file=manifest.files[place.file].name,
        shift=place.offset,
        owner=lambda: manifest.owner(index),
        chunks=chunks,
    )


def faults_in(
    view: memoryview,
    expected: Chunks,
    algorithm: Algorithm,
    *,
    folder: Path,
    file: str,
    shift: int,
    owner: Callable[[], str],
    chunks: range | None = None,
) -> Iterator[CorruptChunkError]:
    """Compare a run of bytes with its digests; ``shift`` is its place in the file, for messages."""
    for chunk in chunks if chunks is not None else range(len(expected.crc32)):
        start, end = chunk_range(chunk, expected.size_bytes)
        found, wanted = _digests(view[start:end], expected, chunk, algorithm)
        if found != wanted:
            yield CorruptChunkError(
                owner=owner(),
                chunk=chunk,
                folder=folder,
                file=file,
                start=shift + start,
                end=shift + end,
                algorithm=algorithm,
                found=found,
                expected=wanted,
            )


def _digests(data: memoryview, expected: Chunks, chunk: int, algorithm: Algorithm) -> tuple[str, str]:
    if algorithm == "crc32":
        return f"{crc32(data):08x}", f"{expected.crc32[chunk]:08x}"
    return sha256(data).hex(), expected.sha256_of(chunk).hex()


def check_all(payload: Payload, algorithm: Algorithm, indices: list[int] | None = None) -> Iterator[CorruptChunkError]:
    """Faults of many storages, found by all cores; in storage order."""
    wanted = list(range(len(payload.manifest.storages))) if indices is None else indices
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ckpt-verify") as pool:
        tasks = [
            pool.submit(_faults, payload, index, algorithm, chunks)
            for index in wanted
            for chunks in _pieces(len(payload.manifest.storages[index].crc32))
        ]
        for task in tasks:
            yield from task.result()


def _faults(payload: Payload, index: int, algorithm: Algorithm, chunks: range) -> list[CorruptChunkError]:
    return list(faults_in_storage(payload, index, algorithm, chunks=chunks))


def _pieces(chunks: int) -> Iterator[range]:
    """Sixteen chunks are one task: enough to keep a thread busy, few enough to share a large storage."""
    for start in range(0, chunks, 16):
        yield range(start, min(start + 16, chunks))
