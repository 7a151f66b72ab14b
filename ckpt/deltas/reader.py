"""Apply a delta: base + frames → a new checkpoint, proved before it appears.

In order: where ``trust`` is given, a trusted key must have signed the delta; the base's root must be the one it was
made for; base and delta together must give a manifest with the stated root and seal; a frame's SHA-256 is checked
before its decoder sees it, and what it decodes to is bounded by the declared size; the written storages must have the
digests of that manifest. Only then the folder is renamed into place. A delta that fails anywhere changes nothing. What
a killed ``apply`` of the same target has written is compared by CRC-32, and only the rest is made.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ckpt.deltas.delta import Delta, Frame, Operation
from ckpt.deltas.patches import Patches, patches_in
from ckpt.disk.folder import Folder, forget, reading
from ckpt.disk.hashing import Progress
from ckpt.errors import CorruptFrameError
from ckpt.format.digests import CHUNK_BYTES, Chunks, crc32, split, text
from ckpt.format.manifest import Manifest
from ckpt.format.names import DELTA_NAME
from ckpt.reading.payload import Payload, open_payload
from ckpt.saving.memory import BLOCK_BYTES, Source
from ckpt.saving.writer import write
from ckpt.signatures.statements import Signed
from ckpt.signatures.trust import Trust, Trusted, as_trust

_NOTHING = memoryview(b"")
_AHEAD_BYTES = 64 << 20  # decoded and not yet asked for; a decoder takes about as much again


def apply(
    base: Path | str,
    delta: Path | str,
    out: Path | str,
    *,
    trust: Trusted | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Write the checkpoint that a delta makes from ``base``, with the target's signatures that the delta carries.

    Args:
        base: A checkpoint folder; never written to.
        delta: A delta folder.
        out: The checkpoint folder to be.
        trust: Whose signature the delta must have: a :class:`Trust`, or public keys. It names base and target by root
            and seal, so the base need not be signed; whether the outcome is, says ``ckpt.verify(out, trust=…)``.
        progress: Called with (bytes done, bytes in all).

    Returns:
        The new checkpoint's manifest; its root is the delta's ``target_root``.

    Raises:
        SignatureError: nobody who is trusted has signed the delta.
        WrongBaseError: made for another base; found and expected roots are named.
        CorruptFrameError: a frame is not what was written.
        FormatError: the delta breaks a rule.
        DestinationError: ``out`` exists.
    """
    trusted = as_trust(trust)
    payload = open_payload(base, attachments=True)
    return reading(delta, lambda folder: _apply(payload, folder, out, trusted, progress), expected=DELTA_NAME)


def _apply(base: Payload, folder: Folder, out: Path | str, trust: Trust | None, progress: Progress | None) -> Manifest:
    patches = patches_in(folder, trust)
    target = patches.delta.completed(base.manifest, folder.path)
    with _Ahead(patches) as decoded:
        return _written(base, patches.delta, target, decoded, patches.signatures.target, out, progress)


def _written(
    base: Payload,
    delta: Delta,
    target: Manifest,
    decoded: "_Ahead",
    signatures: Sequence[Signed],
    out: Path | str,
    progress: Progress | None,
) -> Manifest:
    storages = [
        _source(operation, chunks, base.storage(operation.base) if operation.uses_base else _NOTHING, decoded)
        for operation, chunks in zip(delta.storages, target.storages, strict=True)
    ]
    attachments = {
        item.path: _source(
            operation, item.chunks, base.attachments[operation.base] if operation.uses_base else _NOTHING, decoded
        ).blocks
        for operation, item in zip(delta.attachments, target.attachments, strict=True)
    }
    return write(
        out,
        records=target.tensors,
        pieces=target.pieces,
        sources=storages,
        state=target.state,
        metadata=target.metadata,
        attachments=attachments,
        producer=target.producer,
        progress=progress,
        accept=lambda written: _accept(decoded.patches.folder, written, target),
        signatures=lambda _: signatures,
        work=f"apply {target.seal}",
    )


def _source(
    operation: Operation, chunks: Chunks, base: memoryview, decoded: "_Ahead", left: memoryview = _NOTHING
) -> Source:
    found = _Found(left, chunks)
    missing = [frame for frame in operation.frames if found.part(frame.offset, frame.offset + frame.size) is None]
    return Source(
        size_bytes=chunks.size_bytes,
        blocks=lambda: _blocks(operation.frames, missing, base, decoded, found),
        begin=lambda: decoded.begin(missing, base),
        lasting=True,
        found=lambda left: _source(operation, chunks, base, decoded, left),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What a killed writer left in the place of a storage that has these digests: part of it, or anything."""

    left: memoryview
    chunks: Chunks

    def part(self, start: int, end: int) -> memoryview | None:
        """Some whole chunks, if their CRC-32s are right: that it was this very work is known already."""
        part, first = self.left[start:end], start // CHUNK_BYTES
        if len(part) < end - start:
            return None
        right = all(crc32(chunk) == self.chunks.crc32_of(number) for number, chunk in enumerate(split(part), first))
        forget(part)
        return part if right else None


def _blocks(
    frames: Sequence[Frame], missing: Sequence[Frame], base: memoryview, decoded: "_Ahead", found: _Found
) -> Iterator[memoryview]:
    """The base's bytes, with those of the frames in their places."""
    reached, to_come = 0, deque(missing)
    for frame in frames:
        yield from _plain(base, reached, frame.offset, found)
        reached = frame.offset + frame.size
        if to_come and frame is to_come[0]:
            to_come.popleft()
            yield memoryview(decoded.take(frame, base, then=to_come))
        else:
            yield found.left[frame.offset : reached]
    yield from _plain(base, reached, found.chunks.size_bytes, found)


def _plain(base: memoryview, start: int, end: int, found: _Found) -> Iterator[memoryview]:
    for offset in range(start, end, BLOCK_BYTES):
        last = min(offset + BLOCK_BYTES, end)
        block = found.part(offset, last)
        yield base[offset:last] if block is None else block


class _Ahead:
    """Decodes frames by all cores before they are asked for, as many at once as memory allows."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ckpt-decode")
        self._waiting: dict[Frame, Future[bytes | bytearray]] = {}
        self._bytes = 0  # of what is waiting

    def __enter__(self) -> "_Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, frames: Iterable[Frame], base: memoryview) -> None:
        """Start with the first of these frames that are to come."""
        for frame in frames:
            if self._bytes + frame.size > _AHEAD_BYTES:
                return
            if frame not in self._waiting:
                self._waiting[frame] = self._pool.submit(self.patches.decode, frame, base)
                self._bytes += frame.size

    def take(self, frame: Frame, base: memoryview, *, then: Iterable[Frame]) -> bytes | bytearray:
        """The bytes of a frame, each asked for once; ``then`` are those that follow. Errors are those of ``decode``."""
        future = self._waiting.pop(frame, None)
        if future is not None:
            self._bytes -= frame.size
        self.begin(then, base)
        return self.patches.decode(frame, base) if future is None else future.result()


def _accept(folder: Path, written: Manifest, expected: Manifest) -> None:
    """Refuse a result whose digests are not the target's; the first storage that differs is named."""
    names: Callable[[int], str] = expected.owner
    for index, (found, wanted) in enumerate(zip(written.storages, expected.storages, strict=True)):
        if found != wanted:
            raise CorruptFrameError(
                delta=folder,
                frame=f"what makes {names(index)} (or the base's own bytes)",
                found=text(found.digest()),
                expected=text(wanted.digest()),
            )
    if written.seal != expected.seal:
        raise CorruptFrameError(
            delta=folder, frame="the whole", found=f"seal {written.seal}", expected=f"seal {expected.seal}"
        )
