"""Opened safetensors files that others wrote: held to every rule, read once, described by a manifest.

Nothing here writes. What changes while it is read is refused.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ckpt.disk.commit import naming
from ckpt.disk.folder import IrregularFileError, open_regular
from ckpt.disk.hashing import Progress
from ckpt.errors import CorruptFileError, FormatError, NotACheckpointError
from ckpt.format.adopted_header import LENGTH_BYTES, Entry, header_length, parse_header, parse_index
from ckpt.format.digests import CHUNK_BYTES, Chunks, both, chunks_of, sha256, split
from ckpt.format.manifest import FileRecord, Manifest, Placement
from ckpt.format.names import ADOPTED_SUFFIX, INDEX_NAME, check_adopted_name
from ckpt.format.records import TensorRecord, contiguous_strides
from ckpt.format.rules import check
from ckpt.format.state import Kind, Node
from ckpt.saving.writer import PRODUCER

_MAX_INDEX_BYTES = 100_000_000
_BLOCK_BYTES = _TASK_BYTES = 4 * CHUNK_BYTES
_THREADS = min(os.cpu_count() or 1, 16)  # each holds one block: 64 MiB at most


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """An opened file: its row in the file table, and its tensors in the order in which they lie."""

    descriptor: int
    record: FileRecord
    entries: tuple[Entry, ...]


def names_in(folder: Path) -> list[str]:
    """The files of a folder that make one checkpoint: those of its index and the index, or the only one.

    Raises:
        NotACheckpointError: there is no index, and not just one safetensors file.
        FormatError: the index is none.
    """
    if not (folder / INDEX_NAME).exists():
        found = [name for name in os.listdir(folder) if name.endswith(ADOPTED_SUFFIX)]
        if len(found) == 1:
            return found
        raise NotACheckpointError(folder, f"{len(found)} safetensors files and no index", expected=INDEX_NAME)
    with opening(folder, INDEX_NAME, links=True) as descriptor:
        return [*sorted(set(parse_index(_index(descriptor), where=INDEX_NAME).values())), INDEX_NAME]


@contextmanager
def opened(folder: Path, names: Sequence[str], *, links: bool) -> Iterator[list[File]]:
    """The files of a checkpoint to be, their headers held to every rule, and to the index where there is one.

    Args:
        folder: Where they lie.
        names: What :func:`names_in` gives, or one file.
        links: Whether a file may be a link to one elsewhere.

    Raises:
        CorruptFileError: one is missing, or no regular file.
        FormatError: a header or the index breaks a rule, or they contradict each other.
    """
    with naming(folder), ExitStack() as stack:
        files = [_file(stack.enter_context(opening(folder, name, links=links)), name) for name in names]
        _check_names(files)
        yield files


@contextmanager
def opening(folder: Path, name: str, *, links: bool) -> Iterator[int]:
    """The descriptor of one regular file.

    Raises:
        CorruptFileError: there is none.
    """
    path = Path(os.path.realpath(folder / name)) if links else folder / name
    try:
        with naming(path):
            parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                descriptor = open_regular(path.name, parent, path.parent)
            finally:
                os.close(parent)
    except (FileNotFoundError, NotADirectoryError, IrregularFileError) as error:
        raise CorruptFileError(
            folder=folder,
            file=name,
            what="the file",
            found=str(error.strerror),
            expected="a regular file",
            remedy="Fetch it again from where it came.",
        ) from None
    try:
        yield descriptor
    finally:
        with naming(path):
            os.close(descriptor)


def _file(descriptor: int, name: str) -> File:
    size = os.fstat(descriptor).st_size
    entries: tuple[Entry, ...] = ()
    if name == INDEX_NAME:
        header = _index(descriptor)
    else:
        check_adopted_name(name)
        start = _read(descriptor, 0, min(size, LENGTH_BYTES))
        header = _read(descriptor, 0, header_length(start, size_bytes=size, where=name))
        entries = parse_header(header, size_bytes=size, where=name)
    record = FileRecord(name=name, size_bytes=size, header_bytes=len(header), header_sha256=sha256(header))
    return File(descriptor=descriptor, record=record, entries=entries)


def _index(descriptor: int) -> memoryview:
    size = os.fstat(descriptor).st_size
    if size > _MAX_INDEX_BYTES:
        raise FormatError(INDEX_NAME, f"{size} bytes", f"at most {_MAX_INDEX_BYTES}")
    return _read(descriptor, 0, size)


def _check_names(files: Sequence[File]) -> None:
    """Each name in one file, and the index, where there is one, says the same as the headers."""
    homes: dict[str, str] = {}
    for file in files:
        for entry in file.entries:
            if entry.name in homes:
                raise FormatError(file.record.name, f"'{entry.name[:80]}', as in {homes[entry.name]}", "each name once")
            homes[entry.name] = file.record.name
    if files[-1].record.name == INDEX_NAME:
        index = parse_index(_index(files[-1].descriptor), where=INDEX_NAME)
        for name in {**homes, **index}:
            stated, found = index.get(name, "no file"), homes.get(name, "no file")
            if stated != found:
                raise FormatError(INDEX_NAME, f"'{name[:80]}' in {stated}", f"it in {found}, as the headers have it")


def examined(files: Sequence[File], progress: Progress | None = None) -> Manifest:
    """The manifest of opened files; every byte of them is read for it.

    Raises:
        FormatError: a file changed meanwhile.
    """
    before = [_stamp(file) for file in files]
    lying = [(number, entry) for number, file in enumerate(files) for entry in file.entries]
    canonical = sorted(lying, key=lambda item: item[1].name.encode("utf-8"))
    storage_of = {entry.name: index for index, (_, entry) in enumerate(canonical)}
    places = [
        Placement(file=number, offset=files[number].record.header_bytes + entry.start) for number, entry in canonical
    ]
    runs = [
        (files[place.file].descriptor, place.offset, entry.end - entry.start)
        for place, (_, entry) in zip(places, canonical, strict=True)
    ]
    storages = tuple(_digests(runs, progress))
    for file, stamp in zip(files, before, strict=True):
        if _stamp(file) != stamp:
            raise FormatError(file.record.name, "another size or time after reading", "a file that nobody writes to")
    manifest = Manifest(
        storages=storages,
        placements=tuple(places),
        tensors=tuple(_record(entry, storage_of[entry.name]) for _, entry in lying),
        state=_state([entry.name for _, entry in lying]),
        files=tuple(file.record for file in files),
        producer=PRODUCER,
        adopted=True,
    )
    check(manifest)
    return manifest


def _stamp(file: File) -> tuple[int, int, int]:
    status = os.fstat(file.descriptor)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _record(entry: Entry, storage: int) -> TensorRecord:
    strides = contiguous_strides(entry.shape)
    return TensorRecord(
        name=entry.name, dtype=entry.dtype, shape=entry.shape, strides=strides, offset=0, storage=storage
    )


def _state(names: Sequence[str]) -> tuple[Node, ...]:
    """A flat dict of tensors, as ``flatten`` would give it."""
    pairs = ((Node(kind=Kind.STR, data=name.encode("utf-8")), Node(kind=Kind.TENSOR, name=name)) for name in names)
    return (Node(kind=Kind.DICT, count=len(names)), *(node for pair in pairs for node in pair))


def _digests(runs: Sequence[tuple[int, int, int]], progress: Progress | None) -> Iterator[Chunks]:
    """The digests of runs of bytes (descriptor, first byte, size), read in blocks by all cores."""
    total, done = sum(size for *_, size in runs), 0
    blocks = (
        (descriptor, start + offset, min(_BLOCK_BYTES, size - offset))
        for descriptor, start, size in runs
        for offset in range(0, size, _BLOCK_BYTES)
    )
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="ckpt-adopt") as pool:
        hashed = chain.from_iterable(pool.map(_hashed, _tasks(blocks)))
        for *_, size in runs:
            pairs = [pair for _ in range(0, size, _BLOCK_BYTES) for pair in next(hashed)]
            yield chunks_of(pairs, size_bytes=size)
            done += size
            if progress is not None:
                progress(done, total)


_Block = tuple[int, int, int]  # descriptor, first byte, size


def _tasks(blocks: Iterable[_Block]) -> Iterator[list[_Block]]:
    """Blocks put together until they are worth handing to a thread."""
    task: list[_Block] = []
    weight = 0
    for block in blocks:
        task.append(block)
        weight += block[2] + _TASK_BYTES // 256  # what one more read costs beside its bytes
        if weight >= _TASK_BYTES:
            yield task
            task, weight = [], 0
    yield task


def _hashed(task: Sequence[_Block]) -> list[list[tuple[int, bytes]]]:
    return [[both(chunk) for chunk in split(_read(*block))] for block in task]


def _read(descriptor: int, start: int, size: int) -> memoryview:
    view = memoryview(bytearray(size))
    done = 0
    while done < size:
        count = os.preadv(descriptor, [view[done:]], start + done)
        if count == 0:
            raise FormatError("a file", f"its end at byte {start + done}", f"{start + size} bytes, as it had before")
        done += count
    return view
