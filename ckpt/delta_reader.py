"""Apply a delta: base + frames → a new checkpoint, proved before it appears.

In order: the base's root must be the one the delta was made for; base and delta together must give a manifest with
the stated root and seal; a frame's SHA-256 is checked before its decoder sees it, and what it decodes to is bounded
by the declared size; the written storages must have the digests of that manifest. Only then the folder is renamed
into place. A delta that fails anywhere changes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckpt.codecs import codec
from ckpt.delta import Delta, Frame, Operation
from ckpt.delta_wire import read_delta
from ckpt.digests import Chunks, sha256, text
from ckpt.errors import CorruptFrameError
from ckpt.manifest import Manifest
from ckpt.memory import BLOCK_BYTES, Source
from ckpt.payload import open_payload
from ckpt.reader import open_checkpoint
from ckpt.writer import Progress, write


def apply(base: Path | str, delta: Path | str, out: Path | str, *, progress: Progress | None = None) -> Manifest:
    """Write the checkpoint that a delta makes from ``base``.

    Args:
        base: A checkpoint folder; never written to.
        delta: A delta folder.
        out: The checkpoint folder to be.
        progress: Called with (bytes done, bytes in all).

    Returns:
        The new checkpoint's manifest; its root is the delta's ``target_root``.

    Raises:
        WrongBaseError: made for another base; found and expected roots are named.
        CorruptFrameError: a frame is not what was written.
        FormatError: the delta breaks a rule.
        DestinationError: ``out`` exists.
    """
    folder = Path(delta)
    described = read_delta(folder)
    payload = open_payload(base)
    target = described.completed(payload.manifest, folder)
    patches = _Patches(folder, described)
    storages = [
        _source(operation, chunks, payload.storage(operation.base) if operation.uses_base else memoryview(b""), patches)
        for operation, chunks in zip(described.storages, target.storages, strict=True)
    ]
    attachments = {
        item.path: _source(operation, item.chunks, _attachment(base, payload.manifest, operation), patches).blocks
        for operation, item in zip(described.attachments, target.attachments, strict=True)
    }
    return write(
        out,
        records=target.tensors,
        sources=storages,
        state=target.state,
        metadata=target.metadata,
        attachments=attachments,
        producer=target.producer,
        progress=progress,
        accept=lambda written: _accept(folder, written, target),
    )


def _attachment(base: Path | str, manifest: Manifest, operation: Operation) -> memoryview:
    if not operation.uses_base:
        return memoryview(b"")
    with open_checkpoint(base) as checkpoint:
        return memoryview(checkpoint.attachment(manifest.attachments[operation.base].path).read_bytes())


def _source(operation: Operation, chunks: Chunks, base: memoryview, patches: "_Patches") -> Source:
    return Source(
        size_bytes=chunks.size_bytes, blocks=lambda: _blocks(operation.frames, chunks.size_bytes, base, patches)
    )


def _blocks(frames: Sequence[Frame], size: int, base: memoryview, patches: "_Patches") -> Iterator[memoryview]:
    """The base's bytes, with those of the frames in their places."""
    reached = 0
    for frame in frames:
        yield from _plain(base, reached, frame.offset)
        yield memoryview(patches.decode(frame, base))
        reached = frame.offset + frame.size
    yield from _plain(base, reached, size)


def _plain(base: memoryview, start: int, end: int) -> Iterator[memoryview]:
    for offset in range(start, end, BLOCK_BYTES):
        yield base[offset : min(offset + BLOCK_BYTES, end)]


@dataclass(frozen=True, slots=True)
class _Patches:
    """The frames of a delta folder, read one at a time."""

    folder: Path
    delta: Delta

    def decode(self, frame: Frame, base: memoryview) -> bytes | bytearray:
        """The bytes of a frame; its SHA-256 is checked before its decoder runs.

        Raises:
            CorruptFrameError: other bytes than were written, or they decode to something else.
        """
        encoded = self._encoded(frame)
        if frame.base_offset + frame.base_size > len(base):
            raise self._bad(frame, f"a base of {len(base)} bytes", f"{frame.base_offset + frame.base_size}")
        source = base[frame.base_offset : frame.base_offset + frame.base_size]
        try:
            decoded = codec(frame.codec).decode(source, memoryview(encoded), width=frame.width, size=frame.size)
        except ValueError as error:
            raise self._bad(frame, str(error), f"{frame.size} bytes") from error
        if len(decoded) != frame.size:
            raise self._bad(frame, f"{len(decoded)} bytes", f"{frame.size} bytes")
        return decoded

    def _encoded(self, frame: Frame) -> bytes:
        try:
            with open(self.folder / self.delta.patches[frame.patch].name, "rb") as file:
                file.seek(frame.patch_offset)
                encoded = file.read(frame.encoded_size)
        except FileNotFoundError:
            raise self._bad(frame, "no patch file", self.delta.patches[frame.patch].name) from None
        if sha256(encoded) != frame.sha256:
            raise self._bad(frame, text(sha256(encoded)), text(frame.sha256))
        return encoded

    def _bad(self, frame: Frame, found: str, expected: str) -> CorruptFrameError:
        name = f"the frame at byte {frame.patch_offset} of {self.delta.patches[frame.patch].name}"
        return CorruptFrameError(delta=self.folder, frame=name, found=found, expected=expected)


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
