"""Stage a delta in live memory: decode it, prove both sides, and keep what has to be written.

In order: a trusted key must have signed the delta, where ``trust`` is given; the memory must be laid out as the base;
its bytes that frames touch must have the base's SHA-256; a frame's SHA-256 is checked before its decoder runs; and what
it makes must have the target's. Memory is only read. Frames are worked on by a few threads, each with a few times a
frame of memory; what they find is kept as :mod:`ckpt.deltas.live.writes`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ckpt.deltas.codecs.integers import elements
from ckpt.deltas.delta import Frame, Operation
from ckpt.deltas.live.memory import Live, LiveStorage, live_storages
from ckpt.deltas.live.patch import LivePatch, Stage, prove_live
from ckpt.deltas.live.record import Kept, read_record
from ckpt.deltas.live.writes import Change, Write, change_between, writes_of
from ckpt.deltas.patches import Patches, patches_in
from ckpt.deltas.wire import MAX_FRAME_BYTES
from ckpt.disk.folder import Folder, reading
from ckpt.errors import CorruptFrameError, FormatError, NotInPlaceError
from ckpt.format.digests import CHUNK_BYTES, chunk_range, sha256, text
from ckpt.format.manifest import Manifest
from ckpt.format.names import DELTA_NAME
from ckpt.signatures.trust import Trusted, as_trust

_MOST_THREADS = 4  # a frame may have 16 MiB; old, new and what its decoder needs are a few times as much


def stage(
    delta: Path | str, tensors: Mapping[str, Live], *, manifest: Manifest, trust: Trusted | None = None
) -> LivePatch:
    """Make ready what turns live memory into a delta's target; the memory is only read.

    Args:
        delta: A delta folder, which may go when this returns.
        tensors: The base in memory: tensor name → tensor on any device, or NumPy array. Tensors that share memory in
            the checkpoint must share it here. An array of unsigned integers stands for elements of any dtype of that
            width. Other names are not looked at.
        manifest: The base's, as ``ckpt.read_manifest`` reads it, or ``target`` of the patch before.
        trust: Whose signature the delta must have: a :class:`Trust`, or public keys.

    Returns:
        The patch. It keeps positions, old and new values: of bfloat16 8 bytes for each element that changes (12 on a
        GPU), and never more than twice the frames' bytes where tensors lie in rows.

    Raises:
        SignatureError: nobody who is trusted has signed the delta.
        WrongBaseError: made for another base than ``manifest``.
        NotInPlaceError: tensors come, go, or change shape or dtype.
        LiveMemoryError: a tensor is missing, cannot be written, or lies otherwise than the base's.
        LiveChunkError: memory does not hold the base where the delta changes it; a :class:`CorruptChunkError`.
        CorruptFrameError: a frame is not what was written.
        FormatError: the delta breaks a rule.

    Example:
        >>> patch = ckpt.stage("delta", model.state_dict(), manifest=manifest)  # doctest: +SKIP
        >>> patch.apply()
        >>> manifest = patch.confirm()
    """
    trusted = as_trust(trust)

    def read(folder: Folder) -> LivePatch:
        patches = patches_in(folder, trusted)
        target = patches.delta.completed(manifest, folder.path)
        _refuse_other_tables(folder.path, manifest, target)
        storages = live_storages(manifest, tensors)
        writes = _Stager(patches, manifest, target, storages).writes()
        return LivePatch(base=manifest, target=target, tensors=dict(tensors), storages=storages, writes=writes)

    return reading(delta, read, expected=DELTA_NAME)


def _refuse_other_tables(delta: Path, base: Manifest, target: Manifest) -> None:
    for one, other, change in ((base, target, "goes"), (target, base, "comes")):
        if missing := [name for name in one.by_name if name not in other.by_name]:
            raise NotInPlaceError(delta=delta, found=f"tensor '{missing[0]}', which {change}", expected="the same ones")
    for name, record in base.by_name.items():
        if (after := target.by_name[name]) != record:
            raise NotInPlaceError(delta=delta, found=f"'{name}' as {after}", expected=f"{record}")
    if base.pieces or target.pieces:
        raise NotInPlaceError(delta=delta, found="tensors in pieces", expected="whole ones (ckpt.consolidate)")


class _Piece(NamedTuple):
    """Bytes ``start`` … ``end`` of a storage of the target: what a frame makes, or those of another storage."""

    storage: int
    start: int
    end: int
    frame: Frame | None


@dataclass(frozen=True, slots=True, eq=False)
class _Stager:
    """Turns pieces into changes; chunks of the base are proved when they are first read."""

    patches: Patches
    base: Manifest
    target: Manifest
    storages: Sequence[LiveStorage]
    _proved: set[tuple[int, int]] = field(default_factory=set)

    def writes(self) -> list[Write]:
        operations = enumerate(self.patches.delta.storages)
        pieces = [piece for index, operation in operations for piece in self._pieces(index, operation)]
        writes: list[Write] = []
        with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS), thread_name_prefix="ckpt-stage") as pool:
            found = zip(pieces, pool.map(self._change, pieces), strict=True)
            for index, group in groupby(found, key=lambda pair: pair[0].storage):
                changes = (change for _, change in group if change is not None)
                writes.extend(writes_of(index, self.storages[index], changes))
        return writes

    def _pieces(self, index: int, operation: Operation) -> Iterator[_Piece]:
        """What an operation writes over; where it takes another storage's bytes, all of it."""
        reached, size = 0, len(self.storages[index])
        elsewhere = operation.uses_base and operation.base != index
        for frame in operation.frames:
            if elsewhere:
                yield from _runs(index, reached, frame.offset)
            reached = frame.offset + frame.size
            yield _Piece(index, frame.offset, reached, frame)
        if elsewhere:
            yield from _runs(index, reached, size)

    def _change(self, piece: _Piece) -> Change | None:
        """What a piece changes, proved: what is there by the base's digests, what is new by the target's."""
        index, start, end, frame = piece
        storage = self.storages[index]
        old = memoryview(bytes(storage[start:end]))  # a copy: what was proved is what is kept
        self._prove_base(index, start, old)
        if frame is None:
            new = memoryview(bytes(self._read(self._source(piece), start, end)))
        else:
            new = memoryview(self._decoded(piece, frame, old))
        self._prove_target(index, start, new)
        try:
            return change_between(storage, start, old, new)
        except ValueError as error:
            raise self._bad(index, start // CHUNK_BYTES, str(error), "changes of tensors alone") from None

    def _decoded(self, piece: _Piece, frame: Frame, old: memoryview) -> bytes | bytearray:
        source, begin, end = self._source(piece), frame.base_offset, frame.base_offset + frame.base_size
        in_place = (source, begin, end) == (piece.storage, piece.start, piece.end)
        return self.patches.decode(replace(frame, base_offset=0), old if in_place else self._read(source, begin, end))

    def _source(self, piece: _Piece) -> int:
        return self.patches.delta.storages[piece.storage].base

    def _read(self, index: int, start: int, end: int) -> memoryview:
        """Bytes of the base; the chunks they lie in are proved, each once."""
        storage = self.storages[index]
        for chunk in range(start // CHUNK_BYTES, -(-min(end, len(storage)) // CHUNK_BYTES) if end > start else 0):
            if (index, chunk) not in self._proved:
                first, last = chunk_range(chunk, len(storage))
                self._prove_base(index, first, storage[first:last])
        return storage[start:end]

    def _prove_base(self, index: int, start: int, data: memoryview) -> None:
        prove_live(self.storages[index], start, data, self.base, index)
        self._proved.update((index, chunk) for chunk in _chunks(start, data))

    def _prove_target(self, index: int, start: int, data: memoryview) -> None:
        expected = self.target.storages[index]
        for chunk in _chunks(start, data):
            first, end = chunk_range(chunk, expected.size_bytes)
            found = sha256(data[first - start : end - start])
            if found != expected.sha256_of(chunk):
                raise self._bad(index, chunk, text(found), text(expected.sha256_of(chunk)))

    def _bad(self, index: int, chunk: int, found: str, expected: str) -> CorruptFrameError:
        what = f"what makes chunk {chunk} of {self.target.owner(index)}"
        return CorruptFrameError(delta=self.patches.folder, frame=what, found=found, expected=expected)


def _runs(index: int, start: int, end: int) -> Iterator[_Piece]:
    for first in range(start, end, MAX_FRAME_BYTES):
        yield _Piece(index, first, min(first + MAX_FRAME_BYTES, end), None)


def _chunks(start: int, data: memoryview) -> range:
    """Chunks that bytes from a chunk's boundary on fill."""
    return range(start // CHUNK_BYTES, -(-(start + len(data)) // CHUNK_BYTES))


def staged(folder: Path | str, tensors: Mapping[str, Live]) -> LivePatch:
    """The patch of a record, over memory that may hold its base, its target, or anything that a kill left between.

    Every chunk that the patch writes is proved on a copy: with the old values in place it must be the base's, with the
    new ones the target's. The memory is only read. ``apply`` or ``undo`` then gives one state or the other.

    Args:
        folder: What :meth:`LivePatch.save` wrote. It is believed: nobody else may write there.
        tensors: As for :func:`stage`.

    Raises:
        NotACheckpointError: there is no record.
        LiveMemoryError: a tensor is missing, cannot be written, or lies otherwise than the base's.
        LiveChunkError: memory holds something else beside what the patch writes; the chunk is named.
        FormatError: the record breaks a rule.
        IntegrityError: its bytes are not those that were written.
    """
    record = read_record(folder, tuple(Stage))
    _refuse_other_tables(Path(folder), record.base, record.target)
    storages = live_storages(record.base, tensors)
    writes = [_again(kept, storages[kept.storage], f"{folder}: writes[{n}]") for n, kept in enumerate(record.writes)]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS), thread_name_prefix="ckpt-stage") as pool:
        list(pool.map(lambda write: _prove_both(write, storages[write.storage], record.base, record.target), writes))
    return LivePatch(
        base=record.base, target=record.target, tensors=dict(tensors), storages=storages, writes=writes,
        state=Stage(record.word), folder=Path(folder).resolve(),
    )  # fmt: skip


def _again(kept: Kept, storage: LiveStorage, where: str) -> Write:
    """A write that was kept, on the device of its storage."""
    expected = f"ascending ones of the storage's {len(storage) // storage.width}"
    if not 0 <= kept.start <= len(storage) // storage.width - len(kept.old):
        raise FormatError(where, f"{len(kept.old)} elements from {kept.start} on", expected)
    places = np.arange(len(kept.old)) if kept.positions is None else kept.positions.numpy().astype(np.int64)
    start, end = kept.start * storage.width, (kept.start + int(places[-1]) + 1) * storage.width
    if places[0] < 0 or (np.diff(places) <= 0).any() or end > len(storage):
        raise FormatError(where, f"elements {kept.start} + {places[0]} … {places[-1]}", expected)
    part = storage.integers(start, end)
    if not kept.old.dtype == kept.new.dtype == part.dtype:
        raise FormatError(where, f"{kept.old.dtype} and {kept.new.dtype}", f"{part.dtype}")
    if not storage.covers(places + kept.start) or (kept.positions is None and not storage.is_plain):
        raise FormatError(where, "elements that no tensor covers", "those of tensors alone")
    positions = kept.positions
    if positions is not None:
        positions = positions.to(part.device, torch.int64 if part.is_cuda else positions.dtype)
    return Write(
        storage=kept.storage, start=kept.start, part=part, positions=positions, old=kept.old.to(part.device),
        new=kept.new.to(part.device),
    )  # fmt: skip


def _prove_both(write: Write, storage: LiveStorage, base: Manifest, target: Manifest) -> None:
    """Raise unless each chunk of memory is the base's with the old values, and the target's with the new ones."""
    places = write.places()
    values = [each.cpu().numpy() for each in (write.old, write.new)]
    if storage.is_permuted:
        places = storage.as_stored(places)
        order = np.argsort(places)
        places, values = places[order], [each[order] for each in values]
    chunks = places * storage.width // CHUNK_BYTES
    for chunk in np.unique(chunks).tolist():
        start, end = chunk_range(chunk, len(storage))
        low, high = np.searchsorted(chunks, [chunk, chunk + 1])
        scratch = bytearray(storage[start:end])
        own = elements(scratch, storage.width)
        for each, expected in zip(values, (base, target), strict=True):
            own[places[low:high] - start // storage.width] = each[low:high].view(own.dtype)
            prove_live(storage, start, memoryview(scratch), expected, write.storage)
