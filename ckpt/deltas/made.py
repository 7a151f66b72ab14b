"""The target of a delta as bytes that another delta is made of: never written, its frames decoded when touched.

Whoever reads proves what was read by the target's digests, which base and delta state together, as for files. Frames of
codecs that add are decoded by themselves and added to as much of the base as is read, so that a part can be read where
only that part of the base is known.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from ckpt.deltas.codecs.integers import WIDTHS, add
from ckpt.deltas.delta import Frame, Operation
from ckpt.deltas.patches import Patches
from ckpt.deltas.sides import Bytes, Side
from ckpt.disk.folder import forget
from ckpt.errors import CorruptFrameError
from ckpt.format.digests import Chunks, chunk_range, sha256, text
from ckpt.format.manifest import Manifest
from ckpt.signatures.statements import Signed

ADDITIVE = ("sparse", "planes")  # these decode to base + difference, element by element, whatever the base is
_KEPT_BYTES = 16 << 20  # of decoded frames beside the newest one: a reader comes back to where two of them meet
_NOTHING = memoryview(b"")


class Made:
    """The side that ``apply`` would write of a base and a delta.

    Raises:
        WrongBaseError: the delta was made for another base.
        FormatError: base and delta together make no valid manifest with the stated root and seal.
    """

    def __init__(self, base: Side, patches: Patches) -> None:
        self.manifest: Manifest = patches.delta.completed(base.manifest, patches.folder)
        self.signatures: Sequence[Signed] = patches.signatures.target
        self._folder = patches.folder
        decoded = Decoded(patches)
        self._storages = [
            Run(
                operation, chunks.size_bytes, base.storage(operation.base) if operation.uses_base else _NOTHING, decoded
            )
            for operation, chunks in zip(patches.delta.storages, self.manifest.storages, strict=True)
        ]
        self.attachments: Sequence[Bytes] = [
            Run(
                operation,
                item.chunks.size_bytes,
                base.attachments[operation.base] if operation.uses_base else _NOTHING,
                decoded,
            )
            for operation, item in zip(patches.delta.attachments, self.manifest.attachments, strict=True)
        ]

    def storage(self, index: int) -> Bytes:
        return self._storages[index]

    def prove(self, index: int, chunk: int, data: memoryview) -> None:
        self._prove(self.manifest.storages[index], chunk, data, lambda: self.manifest.owner(index))

    def prove_storage(self, index: int) -> None:
        """Raise on the first chunk of a storage that does not have its SHA-256."""
        for chunk in range(self.manifest.storages[index].count):
            self.prove(index, chunk, self._storages[index][slice(*chunk_range(chunk, len(self._storages[index])))])

    def prove_attachment(self, index: int) -> None:
        item, run = self.manifest.attachments[index], self.attachments[index]
        for chunk in range(item.chunks.count):
            data = run[slice(*chunk_range(chunk, len(run)))]
            self._prove(item.chunks, chunk, data, lambda: f"attachment '{item.path}'")

    def _prove(self, expected: Chunks, chunk: int, data: memoryview, owner: Callable[[], str]) -> None:
        found = sha256(data)
        if found != expected.sha256_of(chunk):
            raise CorruptFrameError(
                delta=self._folder,
                frame=f"what makes chunk {chunk} of {owner()} (or the base's own bytes)",
                found=text(found),
                expected=text(expected.sha256_of(chunk)),
            )


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """The frames of a delta, decoded; the last of them are kept."""

    patches: Patches
    _kept: OrderedDict[Frame, memoryview] = field(default_factory=OrderedDict)

    def frame(self, frame: Frame, base: Bytes) -> memoryview:
        """The bytes of a frame."""
        found = self._kept.pop(frame, None)
        if found is None:
            while sum(frame.size for frame in self._kept) > _KEPT_BYTES:
                self._kept.popitem(last=False)
            found = memoryview(self.patches.decode(frame, base))
        self._kept[frame] = found
        return found

    def difference(self, frame: Frame) -> memoryview:
        """What an additive frame adds."""
        return self.frame(frame, _Zeros(frame.base_offset + frame.base_size))


def is_additive(frame: Frame) -> bool:
    """Whether a frame adds to what lies in its own place."""
    return frame.codec in ADDITIVE and frame.base_offset == frame.offset


@dataclass(frozen=True, slots=True)
class Run:
    """A storage or attachment of a target: the base's bytes, with those of the frames in their places."""

    operation: Operation
    size: int
    base: Bytes
    decoded: Decoded

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> memoryview:
        start, end, _ = part.indices(self.size)
        frames = self.operation.frames
        first = bisect_right(frames, start, key=attrgetter("offset")) - 1
        parts: list[memoryview] = []
        for frame in frames[max(first, 0) :]:
            if frame.offset >= end:
                break
            if start < frame.offset:
                parts.append(self.base[start : frame.offset])
                start = frame.offset
            stop = min(frame.offset + frame.size, end)
            if start < stop:
                parts.append(self._of(frame, start, stop))
                start = stop
        if start < end:
            parts.append(self.base[start:end])
        if len(parts) == 1:
            return parts[0]
        joined = memoryview(b"".join(parts))
        for copied in parts:
            forget(copied)
        return joined

    def _of(self, frame: Frame, start: int, stop: int) -> memoryview:
        """Bytes ``start`` … ``stop`` of the target, which a frame makes."""
        if not is_additive(frame):
            return self.decoded.frame(frame, self.base)[start - frame.offset : stop - frame.offset]
        if frame.offset + frame.size > len(self.base):
            raise self.decoded.patches.bad(frame, f"a base of {len(self.base)} bytes", f"{frame.offset + frame.size}")
        first = start // max(WIDTHS) * max(WIDTHS)  # whole elements
        last = min(-(-stop // max(WIDTHS)) * max(WIDTHS), frame.offset + frame.size)
        before = self.base[first:last]
        result = bytearray(before)
        forget(before)
        add(result, self.decoded.difference(frame)[first - frame.offset : last - frame.offset], width=frame.width)
        return memoryview(result)[start - first : stop - first]


@dataclass(frozen=True, slots=True)
class _Zeros:
    """A base of zeros."""

    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> memoryview:
        start, end, _ = part.indices(self.size)
        return memoryview(bytes(end - start))
