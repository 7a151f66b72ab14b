"""Make a delta from two checkpoints: find what changed by digest, encode only that.

Chunks whose SHA-256 is the same in both manifests are not read. The others are read once, cut into frames, and by all
cores checked against their manifests and encoded, each frame by the codec that is smallest on a sample of it; the same
two checkpoints always give the same delta.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import zstandard

from ckpt.deltas.codecs import CODECS, bsdiff, moved
from ckpt.deltas.codecs.integers import WIDTHS
from ckpt.deltas.delta import Action, Delta, Frame, Operation, Patch
from ckpt.deltas.encoding import BYTES, NOTHING, Elements, FrameWriter, Run
from ckpt.deltas.moves import Moves, find_moves
from ckpt.deltas.notes import Notes
from ckpt.deltas.sides import Bytes, Side
from ckpt.deltas.wire import patch_name, read_delta, to_bytes
from ckpt.disk.commit import keep_only, staged, write_file
from ckpt.disk.folder import forget
from ckpt.disk.hashing import Progress
from ckpt.format.digests import CHUNK_BYTES, Chunks, chunk_range, chunks_of, split
from ckpt.format.dtypes import BY_NAME
from ckpt.format.manifest import Manifest
from ckpt.format.names import DELTA_NAME
from ckpt.format.records import TensorRecord
from ckpt.reading.payload import open_payload
from ckpt.saving.writer import PRODUCER, durable
from ckpt.signatures.keys import PrivateKey
from ckpt.signatures.signing import Signer, as_signer
from ckpt.signatures.statements import Signatures, Signed, StatementKind, write_signatures

FRAME_CHUNKS = 16  # at most 16 MiB a frame: decoding needs little memory, repair fetches little
FULL_FRAME_BYTES = 64 << 10  # a frame closes when it is estimated to encode to this
_NOTES = "frames"


def diff(
    base: Path | str,
    target: Path | str,
    out: Path | str,
    *,
    sequence: int = 0,
    sign: Signer | PrivateKey | None = None,
    codecs: Collection[str] = tuple(CODECS),
    progress: Progress | None = None,
) -> Delta:
    """Write the delta that turns ``base`` into ``target``; the target's signatures travel with it.

    Args:
        base, target: Checkpoint folders.
        out: The delta folder to be.
        sequence: A counter kept in the delta, ≥ 0.
        sign: Who signs the delta itself, as for :func:`ckpt.save`.
        codecs: Names of the codecs that may be used, beside ``"raw"``; ``"contextual"`` makes the smallest deltas,
            without it they are applied several times faster.
        progress: Called with (bytes of storages done, bytes in all).

    Returns:
        The delta; ``size_bytes`` is what travels.

    Raises:
        ValueError: a codec that there is not.
        CorruptChunkError: a chunk that would be read is not what its manifest states.
        DestinationError: ``out`` exists.
        BadSignatureError: a signer's answer is no signature; nothing was written then.
    """
    check_codecs(codecs)
    old, new = open_payload(base, attachments=True), open_payload(target, attachments=True, signatures=True)
    return write_between(old, new, out, sequence=sequence, sign=sign, codecs=codecs, progress=progress)


def check_codecs(codecs: Collection[str]) -> None:
    """Raise ``ValueError`` where a name is none of the table's."""
    if unknown := set(codecs) - set(CODECS):
        raise ValueError(f"codecs are {', '.join(sorted(unknown))}; expected some of {', '.join(CODECS)}")


def encoders(codecs: Collection[str]) -> str:
    """All that decides how the same bytes are encoded, in words: what is named so may be gone on with."""
    return f"ckpt {PRODUCER['ckpt']}, zstd {zstandard.ZSTD_VERSION}, codecs {sorted(codecs)}"


def write_between(
    old: Side,
    new: Side,
    out: Path | str,
    *,
    sequence: int = 0,
    sign: Signer | PrivateKey | None = None,
    codecs: Collection[str] = tuple(CODECS),
    progress: Progress | None = None,
) -> Delta:
    """As :func:`diff`, between two sides that need not lie on disk; the caller has checked the codecs."""

    def encode(file: BinaryIO) -> Delta:
        with Notes(Path(file.name).with_name(_NOTES), file) as notes, FrameWriter(file, codecs, notes) as writer:
            planned = _storages(old, new, writer, progress), _attachments(old, new, writer)
            frames = writer.written()
        storages, attachments = ([each.operation(frames) for each in some] for some in planned)
        described = replace(
            new.manifest,
            files=(),
            placements=(),
            adopted=False,
            storages=tuple(map(_without_unchanged, new.manifest.storages, storages)),
            attachments=tuple(
                replace(item, chunks=_without_unchanged(item.chunks, operation))
                for item, operation in zip(new.manifest.attachments, attachments, strict=True)
            ),
        )
        return Delta(
            base_root=old.manifest.root,
            target_root=new.manifest.root,
            target_seal=new.manifest.seal,
            sequence=sequence,
            target=described,
            storages=tuple(storages),
            attachments=tuple(attachments),
            patches=(),
            digest="",
            size_bytes=0,
        )

    work = f"diff {old.manifest.seal} {new.manifest.seal} {encoders(codecs)}"
    return put_delta(out, encode, sign=sign, target_signatures=new.signatures, work=work)


def put_delta(
    out: Path | str,
    encode: Callable[[BinaryIO], Delta],
    *,
    sign: Signer | PrivateKey | None,
    target_signatures: Sequence[Signed],
    accept: Callable[[Path], None] = lambda _: None,
    work: str | None = None,
) -> Delta:
    """Put a delta folder in its place, whole: ``encode`` writes the frames into its one patch and says all else.

    ``accept`` may refuse the folder before it is put there. With ``work``, which names all that decides what the frames
    are, ``encode`` may be given the patch as a killed writer of the same left it.

    Returns:
        The delta as it was read back, so that every rule was checked.
    """
    who = None if sign is None else as_signer(sign)
    with staged(out, overwrite=False, owns=lambda _: "another delta", work=work) as folder:
        if work is not None:
            keep_only(folder, {patch_name(0), _NOTES})
        with durable(folder / patch_name(0), taken_up=work is not None) as file:
            delta = encode(file)
            size = file.tell()
        if size == 0:
            (folder / patch_name(0)).unlink()
        patches = (Patch(name=patch_name(0), size_bytes=size),) if size else ()
        write_file(folder / DELTA_NAME, to_bytes(replace(delta, patches=patches)))
        accept(folder)
        made = read_delta(folder)
        own = () if who is None else (who.signed(StatementKind.DELTA, made.digest, Path(out)),)
        write_signatures(folder, Signatures(own=own, target=tuple(target_signatures)))
        return made


def _without_unchanged(chunks: Chunks, operation: Operation) -> Chunks:
    if operation.action is Action.NEW:
        return chunks
    own = operation.covered()
    pairs = ((chunks.crc32_of(chunk), chunks.sha256_of(chunk)) for chunk in own)
    return chunks_of(pairs, size_bytes=chunks.size_bytes)


class _Planned(NamedTuple):
    """An operation whose frames are named by their numbers."""

    action: Action
    base: int = 0
    frames: tuple[int, ...] = ()

    def operation(self, frames: Sequence[Frame]) -> Operation:
        return Operation(action=self.action, base=self.base, frames=tuple(frames[number] for number in self.frames))


def _storages(old: Side, new: Side, writer: FrameWriter, progress: Progress | None) -> list[_Planned]:
    pairing = _Pairing(old.manifest)
    operations, done = [], 0
    for index, chunks in enumerate(new.manifest.storages):
        operations.append(_storage(old, new, index, new.manifest.users[index], pairing, writer))
        done += chunks.size_bytes
        if progress is not None:
            progress(done, new.manifest.payload_bytes)
    return operations


class _Pairing:
    """Which storage of the base a storage of the target comes from: the same content, else the same name."""

    def __init__(self, base: Manifest) -> None:
        self._by_view = {(view.name, view.piece_at): view.storage for users in base.users for view in users}
        self._by_digest = {chunks.digest(): index for index, chunks in reversed(list(enumerate(base.storages)))}

    def same_content(self, chunks: Chunks) -> int | None:
        return self._by_digest.get(chunks.digest())

    def same_name(self, users: Sequence[TensorRecord]) -> int | None:
        found = (self._by_view.get((tensor.name, tensor.piece_at)) for tensor in users)
        return next((storage for storage in found if storage is not None), None)


def _storage(
    old: Side, new: Side, index: int, users: Sequence[TensorRecord], pairing: _Pairing, writer: FrameWriter
) -> _Planned:
    chunks = new.manifest.storages[index]
    same = pairing.same_content(chunks)
    if same is not None:
        return _Planned(Action.COPY, same)
    partner = pairing.same_name(users)
    elements = _elements(users, chunks.size_bytes)
    if partner is None:
        return _Planned(Action.NEW, frames=_new_frames(new, index, elements, writer))
    before = old.manifest.storages[partner]
    known = old.manifest.users[partner]
    if before.size_bytes != chunks.size_bytes and _elements(known, before.size_bytes) != elements:
        return _Planned(Action.NEW, frames=_new_frames(new, index, elements, writer))
    found = find_moves(old.storage(partner), new.storage(index), before, chunks, known, users, **elements._asdict())
    few = found.known_bytes() * 2 < chunks.size_bytes or not writer.may_use("moved")
    if before.size_bytes != chunks.size_bytes and few and writer.may_use("bsdiff") and _suits_bsdiff(before, chunks):
        whole, made = old.storage(partner)[:], new.storage(index)[:]
        prove = partial(_prove, [*_chunks(old, partner, whole), *_chunks(new, index, made)])
        run = Run(base=whole, target=made, offset=0, base_offset=0, elements=BYTES, prove=prove)
        return _Planned(Action.PATCH, partner, (writer.write(run, ["bsdiff"]),))
    return _Planned(Action.PATCH, partner, _patch_frames(old, new, partner, index, elements, found, writer))


class _Chunk(NamedTuple):
    """A chunk of a storage of a side, as it was read."""

    side: Side
    storage: int
    number: int
    data: memoryview


def _chunks(side: Side, storage: int, data: memoryview, first: int = 0) -> Iterator[_Chunk]:
    """The chunks of a run of bytes that begins with number ``first``."""
    for number, chunk in enumerate(split(data), first):
        yield _Chunk(side, storage, number, chunk)


def _prove(chunks: Sequence[_Chunk]) -> None:
    for chunk in chunks:
        chunk.side.prove(chunk.storage, chunk.number, chunk.data)


def _elements(users: Sequence[TensorRecord], size: int) -> Elements:
    """Those of the tensors when all agree, of complex ones the parts; else bytes."""
    found = {_component(tensor.dtype) for tensor in users}
    elements = found.pop() if len(found) == 1 else BYTES
    return elements if elements.width in WIDTHS and size % elements.width == 0 else BYTES


def _component(dtype: str) -> Elements:
    row = BY_NAME[dtype]
    return Elements(row.size_bytes // (2 if dtype.startswith("complex") else 1), row.mantissa_bits)


def _new_frames(new: Side, index: int, elements: Elements, writer: FrameWriter) -> tuple[int, ...]:
    frames = []
    for first in range(0, new.manifest.storages[index].count, FRAME_CHUNKS):
        start = first * CHUNK_BYTES
        target = new.storage(index)[start : start + FRAME_CHUNKS * CHUNK_BYTES]
        prove = partial(_prove, list(_chunks(new, index, target, first)))
        run = Run(base=NOTHING, target=target, offset=start, base_offset=0, elements=elements, prove=prove)
        frames.append(writer.write(run, ["raw"]))
    return tuple(frames)


def _patch_frames(
    old: Side, new: Side, partner: int, index: int, elements: Elements, found: Moves, writer: FrameWriter
) -> tuple[int, ...]:
    before, after = old.manifest.storages[partner], new.manifest.storages[index]
    changed = [chunk for chunk in range(after.count) if before.sha256_of(chunk) != after.sha256_of(chunk)]
    base, target = old.storage(partner), new.storage(index)
    frames: list[int] = []
    proved: set[int] = set()
    for chunks, shift in _runs(changed, found, base, target):
        start, end = chunks.start * CHUNK_BYTES, min(chunks.stop * CHUNK_BYTES, after.size_bytes)
        runs, made = found.within(start, end), target[start:end]
        proofs: list[_Chunk] = []
        part = memoryview(b"") if shift is None else base[start + shift : end + shift]
        for chunk in sorted(runs.chunks() - proved):
            low, high = chunk_range(chunk, len(base))
            if shift is not None and start + shift <= low and high <= end + shift:  # no copy of what may be one
                data = part[low - start - shift : high - start - shift]
            else:
                data = base[low:high]
            if shift is not None:
                proofs.append(_Chunk(old, partner, chunk, data))
            else:  # a row of each may be all that is used: there may be many
                old.prove(partner, chunk, data)
                forget(data)
        proved |= runs.chunks()
        if shift is not None:
            place, gathered = start + shift, None
        else:
            place, gathered = runs.begin, runs.counted_from(runs.begin)
            part = memoryview(moved.gathered(base, runs, len(made)))
        run = Run(
            base=part,
            target=made,
            offset=start,
            base_offset=place,
            elements=elements,
            gathered=gathered,
            prove=partial(_prove, [*proofs, *_chunks(new, index, made, chunks.start)]),
        )
        can = shift is not None or writer.may_use("moved")
        frames.append(writer.write(run, ["contextual", "sparse", "planes", "raw"] if can else ["raw"]))
    return tuple(frames)


def _runs(changed: Sequence[int], found: Moves, base: Bytes, target: Bytes) -> Iterator[tuple[range, int | None]]:
    """Changed chunks that lie side by side, as frames: closed when full by estimate or by count.

    Beside each, how much further in the base all of it lies; None where that is not one number.
    """
    run, before = range(0), None
    estimate = 0
    for chunk in changed:
        start, end = chunk_range(chunk, len(target))
        shift = found.shift_of(start, end)
        if shift is None:
            weight = end - start - int(found.within(start, end).sizes.sum())
        else:
            weight = _changed_bytes(base[start + shift : end + shift], target[start:end])
        fits = run.stop == chunk and shift == before and len(run) < FRAME_CHUNKS and estimate < FULL_FRAME_BYTES
        if run and fits:
            run = range(run.start, chunk + 1)
            estimate += weight
        else:
            if run:
                yield run, before
            run, before, estimate = range(chunk, chunk + 1), shift, weight
    if run:
        yield run, before


def _changed_bytes(base: memoryview, target: memoryview) -> int:
    """Bytes that differ: about what they encode to."""
    return int(np.count_nonzero(np.frombuffer(base, np.uint8) != np.frombuffer(target, np.uint8)))


def _attachments(old: Side, new: Side, writer: FrameWriter) -> list[_Planned]:
    """From which attachment of the base each one of the target comes: one with its content, else with its path."""
    base = old.manifest.attachments
    by_path = {item.path: number for number, item in enumerate(base)}
    by_content = {item.chunks: number for number, item in reversed(list(enumerate(base)))}
    return [
        _attachment(old, new, index, by_content.get(item.chunks), by_path.get(item.path), writer)
        for index, item in enumerate(new.manifest.attachments)
    ]


def _attachment(old: Side, new: Side, index: int, same: int | None, named: int | None, writer: FrameWriter) -> _Planned:
    item, after = new.manifest.attachments[index], new.attachments[index]
    if same is not None:
        return _Planned(Action.COPY, same)
    new.prove_attachment(index)
    if (
        named is not None
        and writer.may_use("bsdiff")
        and _suits_bsdiff(old.manifest.attachments[named].chunks, item.chunks)
    ):
        old.prove_attachment(named)
        run = Run(base=old.attachments[named][:], target=after[:], offset=0, base_offset=0, elements=BYTES)
        return _Planned(Action.PATCH, named, (writer.write(run, ["bsdiff"]),))
    frames = []
    for start in range(0, len(after), FRAME_CHUNKS * CHUNK_BYTES):
        piece = after[start : start + FRAME_CHUNKS * CHUNK_BYTES]
        run = Run(base=NOTHING, target=piece, offset=start, base_offset=0, elements=BYTES)
        frames.append(writer.write(run, ["raw"]))
    return _Planned(Action.NEW, frames=tuple(frames))


def _suits_bsdiff(before: Chunks, after: Chunks) -> bool:
    """Whether neither side is empty or beyond the bound."""
    sizes = (before.size_bytes, after.size_bytes)
    return min(sizes) > 0 and max(sizes) <= bsdiff.MAX_BYTES
