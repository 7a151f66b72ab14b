"""A delta as a value: what turns one root into another.

A delta is a folder: ``delta.pb`` names base and target, carries the target's manifest without the digests that
did not change, and says for each storage and attachment where its bytes come from; ``patch-NNNNN.bin`` holds the
encoded frames. Its *digest* is the SHA-256 of the body of ``delta.pb``, which states the SHA-256 of every frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from ckpt.errors import FormatError, WrongBaseError
from ckpt.format.digests import CHUNK_BYTES, Chunks, chunk_count, chunk_range, chunks_of
from ckpt.format.manifest import Attachment, Manifest
from ckpt.format.rules import check


class Action(IntEnum):
    """Where a storage's bytes come from; the numbers are those of ``proto/delta.proto``."""

    COPY = 1
    PATCH = 2
    NEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One encoded run: bytes ``offset`` … ``offset + size`` of a target, made from a run of its base."""

    codec: str
    offset: int
    size: int
    base_offset: int
    base_size: int
    width: int
    patch: int
    patch_offset: int
    encoded_size: int
    sha256: bytes
    reversible: bool

    @property
    def chunks(self) -> range:
        """The target's chunks that the frame writes."""
        return range(self.offset // CHUNK_BYTES, -(-(self.offset + self.size) // CHUNK_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """How one storage or attachment of the target comes to be; ``base`` is an index into the base's."""

    action: Action
    base: int = 0
    frames: tuple[Frame, ...] = ()

    @property
    def uses_base(self) -> bool:
        return self.action is not Action.NEW

    def covered(self) -> list[int]:
        """The target's chunks that the frames write, ascending."""
        return [chunk for frame in self.frames for chunk in frame.chunks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A file of encoded frames."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Everything ``delta.pb`` states.

    Attributes:
        base_root, target_root, target_seal: Digests in text form.
        sequence: A counter its writer may use to order a chain.
        target: The target's manifest without files; digests of unchanged bytes are left out.
        storages, attachments: One operation for each of the target's.
        digest: ``sha256:…`` of the body: what a signature covers.
        size_bytes: ``delta.pb`` and all patches: what travels.
    """

    base_root: str
    target_root: str
    target_seal: str
    sequence: int
    target: Manifest
    storages: tuple[Operation, ...]
    attachments: tuple[Operation, ...]
    patches: tuple[Patch, ...]
    digest: str
    size_bytes: int

    def frames(self) -> list[Frame]:
        """All frames, storages first."""
        return [frame for operation in (*self.storages, *self.attachments) for frame in operation.frames]

    def completed(self, base: Manifest, where: Path) -> Manifest:
        """The target's manifest with the digests that were left out taken from the base.

        Raises:
            WrongBaseError: the base has another root than the delta was made for.
            FormatError: base and delta together make no valid manifest with the stated root and seal.
        """
        if base.root != self.base_root:
            raise WrongBaseError(delta=where, found=base.root, expected=self.base_root)
        storages = tuple(
            _completed(chunks, operation, base.storages, f"delta.storages[{index}]")
            for index, (chunks, operation) in enumerate(zip(self.target.storages, self.storages, strict=True))
        )
        base_attachments = [item.chunks for item in base.attachments]
        attachments = tuple(
            Attachment(
                path=item.path,
                chunks=_completed(item.chunks, operation, base_attachments, f"delta.attachments['{item.path}']"),
            )
            for item, operation in zip(self.target.attachments, self.attachments, strict=True)
        )
        target = replace(self.target, storages=storages, attachments=attachments)
        check(target, stored=False)
        for what, found, expected in (
            ("delta.target_root", target.root, self.target_root),
            ("delta.target_seal", target.seal, self.target_seal),
        ):
            if found != expected:
                raise FormatError(what, found, expected)
        return target


def _completed(chunks: Chunks, operation: Operation, base: Sequence[Chunks], where: str) -> Chunks:
    if operation.action is Action.NEW:
        return chunks
    if operation.base >= len(base):
        raise FormatError(where, f"base {operation.base}", f"less than {len(base)}")
    source = base[operation.base]
    if operation.action is Action.COPY:
        if source.size_bytes != chunks.size_bytes or chunks.count:
            raise FormatError(where, f"a copy of {source.size_bytes} bytes", f"{chunks.size_bytes} bytes, no digests")
        return source
    own = {chunk: place for place, chunk in enumerate(operation.covered())}
    if chunks.count != len(own):
        raise FormatError(where, f"{chunks.count} digests", f"{len(own)}, one for each chunk that a frame writes")
    pairs = []
    for chunk in range(chunk_count(chunks.size_bytes)):
        here, place = (chunks, own[chunk]) if chunk in own else (source, chunk)
        if chunk not in own and chunk_range(chunk, chunks.size_bytes) != chunk_range(chunk, source.size_bytes):
            raise FormatError(where, f"chunk {chunk} from no frame", "a frame where the base has no such chunk")
        pairs.append((here.crc32_of(place), here.sha256_of(place)))
    return chunks_of(pairs, size_bytes=chunks.size_bytes)
