"""What a checkpoint states about itself, as one frozen value, and the digests that identify it.

``root`` identifies the content: weights and state, however they are sharded and whatever lies beside them.
``seal`` identifies the package: root, attachments and metadata. Both are always computed, never stored, so that a
manifest cannot contradict itself. A manifest that was read has passed every rule of :mod:`ckpt.format.rules`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ckpt.format.digests import Chunks, Encoder, text
from ckpt.format.entries import named
from ckpt.format.records import PieceRecord, TensorRecord, users_of, views_of
from ckpt.format.state import Node
from ckpt.format.state_digest import state_digest

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a storage's bytes lie: file number and first byte."""

    file: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file beside the manifest: its exact size, and size and SHA-256 of the header before its payload."""

    name: str
    size_bytes: int
    header_bytes: int
    header_sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that travels with the checkpoint, under a relative normalised path."""

    path: str
    chunks: Chunks


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The table of contents of a checkpoint.

    Attributes:
        storages: Chunk digests of each storage, in canonical order.
        placements: Where each storage lies; empty in a manifest that describes no files (inside a delta).
        tensors: Views of the storages, in state order.
        state: The nested state in pre-order.
        metadata: Free text by key; part of the seal.
        producer: Who wrote it; outside every digest.
        adopted: Whether the files were written by others and lie as they came; outside every digest.
        pieces: The boxes that tensors were stored in by several writers, sorted by tensor and offsets. The root covers
            how a tensor was cut (docs/decisions/0011-pieces-have-a-root-of-their-own.md).
    """

    storages: tuple[Chunks, ...]
    placements: tuple[Placement, ...]
    tensors: tuple[TensorRecord, ...]
    state: tuple[Node, ...]
    files: tuple[FileRecord, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, str] = field(default_factory=dict)
    adopted: bool = False
    pieces: tuple[PieceRecord, ...] = ()

    @cached_property
    def root(self) -> str:
        """The digest of weights and state, in text form."""
        return text(self.root_digest)

    @cached_property
    def seal(self) -> str:
        """The digest of root, attachments and metadata, in text form: what a signature covers."""
        return text(self.seal_digest)

    @cached_property
    def root_digest(self) -> bytes:
        if self.pieces:
            encoder = Encoder("treering/pieced-root/v1").raw(self.weights_digest).raw(self.pieces_digest)
            return encoder.raw(self.state_digest).digest()
        return Encoder("treering/root/v1").raw(self.weights_digest).raw(self.state_digest).digest()

    @cached_property
    def seal_digest(self) -> bytes:
        encoder = Encoder("treering/seal/v1").raw(self.root_digest)
        return encoder.raw(self.attachments_digest).raw(self.metadata_digest).digest()

    @cached_property
    def attachments_digest(self) -> bytes:
        encoder = Encoder("treering/attachments/v1").integer(len(self.attachments))
        for item in self.attachments:
            encoder.string(item.path).raw(item.chunks.digest())
        return encoder.digest()

    @cached_property
    def metadata_digest(self) -> bytes:
        encoder = Encoder("treering/metadata/v1").integer(len(self.metadata))
        for key, value in sorted(self.metadata.items()):
            encoder.string(key).string(value)
        return encoder.digest()

    @cached_property
    def weights_digest(self) -> bytes:
        encoder = Encoder("treering/weights/v1").integer(len(self.storages))
        encoder.raw(b"".join(storage.digest() for storage in self.storages))
        encoder.integer(len(self.tensors))
        for tensor in sorted(self.tensors, key=lambda tensor: tensor.name.encode("utf-8")):
            encoder.string(tensor.name).string(tensor.dtype).integers(tensor.shape).integers(tensor.strides)
            encoder.integer(tensor.offset).integer(tensor.storage)
        return encoder.digest()

    @cached_property
    def pieces_digest(self) -> bytes:
        encoder = Encoder("treering/pieces/v1").integer(len(self.pieces))
        named = ((self.tensors[piece.tensor].name, piece) for piece in self.pieces)
        for name, piece in sorted(named, key=lambda pair: (pair[0].encode("utf-8"), pair[1].offsets)):
            encoder.string(name).integers(piece.offsets).integers(piece.sizes).integer(piece.storage)
        return encoder.digest()

    @cached_property
    def by_name(self) -> dict[str, TensorRecord]:
        """Tensor name → record, in state order."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def state_digest(self) -> bytes:
        return state_digest(self.state)

    @cached_property
    def users(self) -> tuple[tuple[TensorRecord, ...], ...]:
        """The tensors of each storage, in state order; of a tensor in pieces, the piece."""
        return users_of(views_of(self.tensors, self.pieces), len(self.storages))

    @cached_property
    def pieces_of(self) -> dict[str, tuple[PieceRecord, ...]]:
        """Tensor name → its pieces, sorted by offsets; only tensors that have some."""
        found: dict[str, list[PieceRecord]] = {}
        for piece in self.pieces:
            found.setdefault(self.tensors[piece.tensor].name, []).append(piece)
        return {name: tuple(pieces) for name, pieces in found.items()}

    def storages_of(self, name: str) -> tuple[int, ...]:
        """The storages that hold a tensor: one, or as many as it has pieces."""
        pieces = self.pieces_of.get(name)
        return (self.by_name[name].storage,) if pieces is None else tuple(piece.storage for piece in pieces)

    @cached_property
    def entries(self) -> tuple[tuple[TensorRecord, ...], ...]:
        """The tensors that stand for each storage in the header of a safetensors file; none for one in ``extra-``."""
        return tuple(named(users, chunks.size_bytes) for users, chunks in zip(self.users, self.storages, strict=True))

    @property
    def payload_bytes(self) -> int:
        """Bytes of all storages: what a full copy of the weights weighs."""
        return sum(storage.size_bytes for storage in self.storages)

    def owner(self, storage: int) -> str:
        """The storage in words, for messages: the tensors that view it."""
        names = [_described(tensor) for tensor in self.users[storage]]
        return f"the storage of {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"


def _described(view: TensorRecord) -> str:
    if view.piece_at is None:
        return f"'{view.name}'"
    box = ", ".join(f"{start}:{start + size}" for start, size in zip(view.piece_at, view.shape, strict=True))
    return f"the piece [{box}] of '{view.name}'"
