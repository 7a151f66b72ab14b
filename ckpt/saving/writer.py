"""Write a checkpoint: storages into files as they stream by, then the manifest, then one rename.

:func:`save` takes a state in memory; :func:`write` takes any storages as blocks of bytes, and is what applying a
delta ends in too. Each block is hashed by threads while it is written, so extra memory stays at a few blocks
whatever the model's size.
"""

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch

from ckpt.collector import without_collection
from ckpt.disk.commit import keep_only, make_folder, staged, write_file
from ckpt.disk.hashing import Hasher, Poured, Progress
from ckpt.errors import CheckpointError, CorruptFileError, DestinationError, FormatError, UnsupportedStateError
from ckpt.format.digests import Chunks, sha256
from ckpt.format.manifest import Attachment, FileRecord, Manifest, Placement
from ckpt.format.names import INDEX_NAME, MANIFEST_NAME, WEIGHTS, check_attachment_paths
from ckpt.format.records import PieceRecord, TensorRecord, views_of
from ckpt.format.rules import check
from ckpt.format.shards import SHARD_BYTES, Shard, check_shard_bytes, index_bytes, plan
from ckpt.format.state import Node, flatten
from ckpt.format.wire import manifest_to_bytes
from ckpt.reading.payload import read_manifest
from ckpt.reading.verification import foreign_files
from ckpt.saving import memory
from ckpt.saving.memory import BLOCK_BYTES, Blocks, Source
from ckpt.signatures.keys import PrivateKey
from ckpt.signatures.signing import Signer, as_signer
from ckpt.signatures.statements import Signatures, Signed, StatementKind, write_signatures

PRODUCER = {"ckpt": "0.1.0", "torch": torch.__version__}
_NOTHING = memoryview(b"")
_AHEAD = 8  # storages whose bytes are begun to be made before they are asked for


def save(
    state: object,
    path: Path | str,
    *,
    metadata: Mapping[str, str] | None = None,
    attachments: Mapping[str, Path | str] | None = None,
    shard_bytes: int = SHARD_BYTES,
    sign: Signer | PrivateKey | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write a state as a checkpoint folder: whole, verified byte by byte later, or not at all.

    Args:
        state: Tensors, arrays and plain values in dicts, lists and tuples; ``docs/formats/checkpoint.md`` lists
            the kinds.
        path: The folder to be; its parents are created.
        metadata: Text by key, covered by the seal.
        attachments: Relative path inside the checkpoint → file to copy there, covered by the seal.
        shard_bytes: Size at which a weights file closes, > 0.
        sign: Who signs the seal before the folder appears: a private key (PEM file or object), or a
            :func:`signer` that says more.
        overwrite: Replace a checkpoint that stands at ``path``; readers of the old one keep its bytes.
        progress: Called with (bytes done, bytes in all) after each block.

    Returns:
        The manifest, with ``root`` and ``seal``.

    Raises:
        UnsupportedStateError: a value cannot be stored faithfully.
        DestinationError: ``path`` exists and may not be replaced; an attachment may not stand at its path.
        BadSignatureError: a signer's answer is no signature; nothing was written then.

    Example:
        >>> ckpt.save({"w": torch.ones(2)}, "runs/1/step-10").root  # doctest: +SKIP
        'sha256:…'
    """
    return prepare(
        state,
        path,
        metadata=metadata,
        attachments=attachments,
        shard_bytes=shard_bytes,
        sign=sign,
        overwrite=overwrite,
        progress=progress,
    ).write()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A state that has passed every check short of the disk, and what :func:`write` is to be told of it."""

    path: Path
    records: tuple[TensorRecord, ...]
    sources: tuple[Source, ...]
    state: tuple[Node, ...]
    metadata: Mapping[str, str]
    attachments: Mapping[str, Blocks]
    shard_bytes: int
    signer: Signer | None
    overwrite: bool
    progress: Progress | None

    def write(self) -> Manifest:
        return write(
            self.path,
            records=self.records,
            sources=self.sources,
            state=self.state,
            metadata=self.metadata,
            attachments=self.attachments,
            shard_bytes=self.shard_bytes,
            overwrite=self.overwrite,
            progress=self.progress,
            signatures=self._signatures,
        )

    def _signatures(self, made: Manifest) -> tuple[Signed, ...]:
        return () if self.signer is None else (self.signer.signed(StatementKind.CHECKPOINT, made.seal, self.path),)


def prepare(
    state: object,
    path: Path | str,
    *,
    metadata: Mapping[str, str] | None,
    attachments: Mapping[str, Path | str] | None,
    shard_bytes: int,
    sign: Signer | PrivateKey | None,
    overwrite: bool,
    progress: Progress | None,
) -> Prepared:
    """What :func:`save` does before it writes; its arguments and errors."""
    check_shard_bytes(shard_bytes)
    text = metadata_of(metadata)
    try:
        check_attachment_paths(attachments or {})
    except FormatError as error:
        raise DestinationError(f"{error.where}: found {error.found}, expected {error.expected}", path=path) from None
    with without_collection():
        nodes, tensors = flatten(state)
        records, sources = memory.collect(tensors)
    return Prepared(
        path=Path(path),
        records=records,
        sources=sources,
        state=nodes,
        metadata=text,
        attachments={name: file_blocks(Path(source)) for name, source in (attachments or {}).items()},
        shard_bytes=shard_bytes,
        signer=None if sign is None else as_signer(sign),
        overwrite=overwrite,
        progress=progress,
    )


def metadata_of(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Metadata of a caller.

    Raises:
        UnsupportedStateError: something in it is no text.
    """
    for key, value in (metadata or {}).items():
        for part in (key, value):
            try:
                str.encode(part)
            except (TypeError, UnicodeEncodeError):  # no text, or a lone surrogate in it
                remedy = "metadata is text by key, so store str() of it"
                raise UnsupportedStateError(f"metadata/{key}", repr(part), remedy) from None
    return dict(metadata or {})


def write(
    path: Path | str,
    *,
    records: Sequence[TensorRecord],
    sources: Sequence[Source],
    state: tuple[Node, ...],
    metadata: Mapping[str, str],
    attachments: Mapping[str, Blocks],
    pieces: Sequence[PieceRecord] = (),
    producer: Mapping[str, str] | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    progress: Progress | None = None,
    accept: Callable[[Manifest], None] | None = None,
    signatures: Callable[[Manifest], Sequence[Signed]] = lambda _: (),
    work: str | None = None,
) -> Manifest:
    """Write storages and attachments given as blocks, and the signatures of the result.

    ``accept`` and ``signatures`` may refuse the result before it is put in place. With ``work``, which names what is to
    be written, storages are told what a killed writer of the same has left of them.
    """
    sizes = [source.size_bytes for source in sources]
    with without_collection():
        shards = plan(views_of(records, pieces), sizes, shard_bytes=shard_bytes)
    check_attachment_paths(attachments)
    with (
        staged(path, overwrite=overwrite, owns=foreign, work=work) as folder,
        Hasher(sum(sizes), progress) as hasher,
    ):
        if work is not None:
            _take_up(folder, shards)
        files, placements, storages = _write_shards(folder, shards, sources, hasher, taken_up=work is not None)
        manifest = Manifest(
            storages=tuple(storages),
            placements=tuple(placements),
            tensors=tuple(records),
            state=state,
            files=tuple(files),
            attachments=write_attachments(folder, attachments, hasher),
            metadata=dict(metadata),
            producer=dict(producer if producer is not None else PRODUCER),
            pieces=tuple(pieces),
        )
        return complete(folder, manifest, accept=accept, signatures=signatures)


def complete(
    folder: Path,
    manifest: Manifest,
    *,
    accept: Callable[[Manifest], None] | None = None,
    signatures: Callable[[Manifest], Sequence[Signed]] = lambda _: (),
) -> Manifest:
    """Put index, manifest and signatures beside the files of a folder that is not in place yet."""
    with without_collection():
        whole = _write_index(folder, manifest)
        check(whole)
        data = manifest_to_bytes(whole)
    if accept is not None:
        accept(whole)
    write_file(folder / MANIFEST_NAME, data)
    write_signatures(folder, Signatures(own=tuple(signatures(whole))))
    return whole


def foreign(folder: Path) -> str | None:
    """What in a folder is not part of the checkpoint whose manifest it holds; None when all of it is."""
    while True:
        before = _which(folder)
        found = _foreign(folder)
        if found is None or _which(folder) == before:
            return found  # otherwise another writer put its folder there, and this one's manifest met that one's files


def _which(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_ino, status.st_ctime_ns


def _foreign(folder: Path) -> str | None:
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return f"no readable manifest.pb ({str(error.facts.get('found'))[:80]})"
    files = foreign_files(folder, manifest)
    return f"the foreign file '{files[0]}'" if files else None


def _take_up(folder: Path, shards: Sequence[Shard]) -> None:
    """Give the payload files that a killed writer left the names that they had while they were written."""
    names = {_working_name(shard, number) for number, shard in enumerate(shards)}
    for number, shard in enumerate(shards):
        for finished in folder.glob(_name_with(shard, number, "?" * 8)):
            finished.rename(folder / _working_name(shard, number))
    keep_only(folder, names)


def _write_shards(
    folder: Path, shards: Sequence[Shard], sources: Sequence[Source], hasher: Hasher, *, taken_up: bool
) -> tuple[list[FileRecord], list[Placement], list[Chunks]]:
    files: list[FileRecord] = []
    placements = [Placement(file=0, offset=0)] * len(sources)
    storages = [Chunks(size_bytes=0, crc32=b"", sha256=b"")] * len(sources)
    for number, shard in enumerate(shards):
        own = [sources[index] for index in shard.storages]
        record, written = write_shard(folder, number, shard, own, hasher, taken_up=taken_up)
        files.append(record)
        for index, offset, chunks in zip(shard.storages, shard.offsets, written, strict=True):
            placements[index], storages[index] = Placement(file=number, offset=offset), chunks
    return files, placements, storages


def write_shard(
    folder: Path, number: int, shard: Shard, sources: Iterable[Source], hasher: Hasher, *, taken_up: bool = False
) -> tuple[FileRecord, list[Chunks]]:
    """Write one payload file, number ``number`` of the checkpoint, and fsync it.

    Args:
        folder: Where it goes.
        number: Counts files from 0.
        shard: What goes into it.
        sources: Its storages, in the order in which they lie.
        hasher: Takes the digests.
        taken_up: The folder is a killed writer's, whose file may be there.
    """
    temporary = folder / _working_name(shard, number)
    written: list[Poured] = []
    with durable(temporary, taken_up=taken_up) as file:
        left = _left_in(file) if taken_up else _NOTHING
        file.write(shard.header)
        known = (_knowing(source, left[offset:]) for source, offset in zip(sources, shard.offsets, strict=True))
        for index, source in zip(shard.storages, _begun(known), strict=True):
            poured = hasher.pour(source.blocks(), file, there=left.obj, lasting=source.lasting)
            if poured.size_bytes != source.size_bytes:
                raise CorruptFileError(
                    folder=folder,
                    file=temporary.name,
                    what=f"the bytes of storage {index}",
                    found=str(poured.size_bytes),
                    expected=str(source.size_bytes),
                )
            written.append(poured)
        chunks = [poured.chunks() for poured in written]
        size = file.tell()
    name = _file_name(shard, number, chunks)
    os.rename(temporary, folder / name)
    header = shard.header
    record = FileRecord(name=name, size_bytes=size, header_bytes=len(header), header_sha256=sha256(header))
    return record, chunks


def _begun(sources: Iterable[Source]) -> Iterator[Source]:
    """The same, each begun while some before it are written."""
    begun: deque[Source] = deque()
    for source in sources:
        if source.begin is not None:
            source.begin()
        begun.append(source)
        if len(begun) > _AHEAD:
            yield begun.popleft()
    yield from begun


def _left_in(file: BinaryIO) -> memoryview:
    """What a file holds before it is written."""
    size = os.fstat(file.fileno()).st_size
    return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) if size else _NOTHING


def _knowing(source: Source, left: memoryview) -> Source:
    return source if source.found is None or not left else source.found(left[: source.size_bytes])


def _working_name(shard: Shard, number: int) -> str:
    return f"{shard.kind}.{number}"


def _file_name(shard: Shard, number: int, storages: Sequence[Chunks]) -> str:
    """A name that carries the content, so that files of an old and a new checkpoint never mix."""
    content = sha256(shard.header + b"".join(storage.digest() for storage in storages)).hex()[:8]
    return _name_with(shard, number, content)


def _name_with(shard: Shard, number: int, content: str) -> str:
    return f"{shard.kind}-{number + 1:05d}-{content}.safetensors"


def _write_index(folder: Path, manifest: Manifest) -> Manifest:
    if not any(record.name.startswith(WEIGHTS) for record in manifest.files):
        return manifest
    data = index_bytes(manifest)
    write_file(folder / INDEX_NAME, data)
    record = FileRecord(name=INDEX_NAME, size_bytes=len(data), header_bytes=len(data), header_sha256=sha256(data))
    return replace(manifest, files=(*manifest.files, record))


def write_attachments(folder: Path, attachments: Mapping[str, Blocks], hasher: Hasher) -> tuple[Attachment, ...]:
    """Write files below ``folder``, in the order of their paths; their blocks are lasting, as a ``Source`` says it."""
    written = []
    for name in sorted(attachments, key=lambda name: name.encode("utf-8")):
        target = folder / name
        make_folder(target.parent)
        with durable(target) as file:
            poured = hasher.pour(attachments[name](), file, lasting=True)
            written.append(Attachment(path=name, chunks=poured.chunks()))
    return tuple(written)


def held_in_memory(attachments: Mapping[str, Blocks]) -> dict[str, Blocks]:
    """The same attachments, read now."""
    return {name: partial(iter, list(blocks())) for name, blocks in attachments.items()}


def file_blocks(source: Path) -> Blocks:
    if not source.is_file():
        raise DestinationError(f"attachment '{source}' is no file; expected an existing one.", path=source)

    def blocks() -> Iterator[memoryview]:
        with open(source, "rb") as file:
            while data := file.read(BLOCK_BYTES):
                yield memoryview(data)

    return blocks


@contextmanager
def durable(path: Path, *, taken_up: bool = False) -> Iterator[BinaryIO]:
    """A new file, fsynced when the block ends.

    With ``taken_up`` it may be one that a killed writer left: it ends where the block leaves it.
    """
    with open(path, "xb" if not taken_up else "r+b" if path.exists() else "x+b") as file:
        yield file
        if taken_up:
            file.truncate()
        file.flush()
        os.fsync(file.fileno())
