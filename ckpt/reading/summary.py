"""What is in a checkpoint, told from its manifest alone: the work behind ``ckpt inspect``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ckpt.disk.folder import Folder, reading
from ckpt.errors import FormatError
from ckpt.format.digests import text
from ckpt.format.manifest import Manifest
from ckpt.format.names import MANIFEST_NAME
from ckpt.reading.payload import manifest_in
from ckpt.signatures.statements import Signed, Statement, StatementKind, signatures_in, statement_from_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts and names for people; sizes in bytes. ``pieces`` are those of tensors that several writers stored.

    ``claims`` is what the signatures beside it say of themselves, and ``unreadable_claims`` tells which of them say
    nothing that can be read. Nothing here verifies them: ``ckpt.verify`` with ``trust`` does.
    """

    path: Path
    root: str
    seal: str
    tensors: int
    pieces: int
    parameters: int
    payload_bytes: int
    chunks: int
    files: tuple[str, ...]
    attachments: tuple[str, ...]
    metadata: dict[str, str]
    producer: dict[str, str]
    claims: tuple[Statement, ...]
    unreadable_claims: tuple[str, ...]


def inspect(path: Path | str) -> Summary:
    """Summarise a checkpoint without reading its weights.

    Raises:
        NotACheckpointError: no manifest there.
        FormatError: the manifest or ``signatures.pb`` breaks a rule; a statement in it may.
    """

    def look(folder: Folder) -> Summary:
        manifest = manifest_in(folder)
        return _summarize(folder.path, manifest, signatures_in(folder, StatementKind.CHECKPOINT).own)

    return reading(path, look, expected=MANIFEST_NAME)


def _summarize(path: Path, manifest: Manifest, signatures: Sequence[Signed]) -> Summary:
    claims: list[Statement] = []
    unreadable: list[str] = []
    for number, signed in enumerate(signatures, start=1):
        where = f"the statement of signature {number} of {len(signatures)}, in the name of {text(signed.key_id)}"
        try:
            claims.append(statement_from_bytes(signed.statement, where))
        except FormatError as error:
            unreadable.append(str(error))
    return Summary(
        path=path,
        root=manifest.root,
        seal=manifest.seal,
        tensors=len(manifest.tensors),
        pieces=len(manifest.pieces),
        parameters=sum(tensor.size_bytes // tensor.item_bytes for tensor in manifest.tensors),
        payload_bytes=manifest.payload_bytes,
        chunks=sum(storage.count for storage in manifest.storages),
        files=tuple(record.name for record in manifest.files),
        attachments=tuple(item.path for item in manifest.attachments),
        metadata=dict(manifest.metadata),
        producer=dict(manifest.producer),
        claims=tuple(claims),
        unreadable_claims=tuple(unreadable),
    )
