"""What a delta is made between: two checkpoints, each on disk or only described by deltas."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ckpt.format.manifest import Manifest
from ckpt.signatures.statements import Signed


class Bytes(Protocol):
    """A run of bytes that is read by parts: memory, or what frames make when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class Part:
    """A run of such bytes, read by parts still."""

    whole: Bytes
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice, /) -> memoryview:
        first, end, _ = part.indices(self.size)
        return self.whole[self.start + first : self.start + end]


class Side(Protocol):
    """A checkpoint as :func:`ckpt.deltas.writer.write_between` reads it; an opened ``Payload`` is one."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def attachments(self) -> Sequence[Bytes]: ...

    @property
    def signatures(self) -> Sequence[Signed]: ...

    def storage(self, index: int) -> Bytes: ...

    def prove(self, index: int, chunk: int, data: memoryview) -> None:
        """Raise unless ``data``, read as a chunk of a storage, has its SHA-256; any thread may ask."""

    def prove_attachment(self, index: int) -> None:
        """Raise on the first chunk of an attachment that does not have its SHA-256."""
