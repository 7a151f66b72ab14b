"""Write a checkpoint anew in its plain form: tensors that several writers stored in pieces become whole.

The root of the outcome is that of saving the same state in one process, whatever the number of writers was and however
they had cut it: pieces have a root of their own (``docs/decisions/0011-pieces-have-a-root-of-their-own.md``).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from ckpt.disk.hashing import Progress
from ckpt.format.manifest import Manifest
from ckpt.format.records import TensorRecord
from ckpt.format.shards import SHARD_BYTES, check_shard_bytes
from ckpt.reading.payload import Payload, faults_in_attachment, open_payload
from ckpt.reading.tensors import Tensors
from ckpt.saving.memory import BLOCK_BYTES, Blocks, Source
from ckpt.saving.writer import write
from ckpt.signatures.keys import PrivateKey
from ckpt.signatures.signing import Signer, as_signer
from ckpt.signatures.statements import StatementKind
from ckpt.signatures.trust import Trusted, as_trust


def consolidate(
    path: Path | str,
    out: Path | str,
    *,
    trust: Trusted | None = None,
    shard_bytes: int = SHARD_BYTES,
    sign: Signer | PrivateKey | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Write the checkpoint at ``path`` with every tensor whole; attachments and metadata come along.

    Every byte is proved by SHA-256 before it is written. Signatures do not come along: they are of another root.

    Args:
        path: A checkpoint folder, with pieces or without.
        out: The checkpoint folder to be.
        trust: Whose signature ``path`` must have.
        shard_bytes: Size at which a weights file closes, > 0.
        sign: Who signs the outcome, as for :func:`ckpt.save`.
        progress: Called with (bytes written, bytes in all).

    Returns:
        The new manifest. Its root is that of :func:`ckpt.save` of the whole state.

    Raises:
        CorruptChunkError, CorruptFileError: bytes are not what the manifest states; nothing was written.
        SignatureError: nobody who is trusted has signed it.
        DestinationError: ``out`` exists.
    """
    check_shard_bytes(shard_bytes)
    who = None if sign is None else as_signer(sign)
    payload = open_payload(path, attachments=True, trust=as_trust(trust))
    manifest, tensors = payload.manifest, Tensors(payload, algorithm="sha256")
    records, first_users = _whole(manifest)
    return write(
        out,
        records=records,
        sources=[_source(manifest, tensors, manifest.by_name[name]) for name in first_users],
        state=manifest.state,
        metadata=manifest.metadata,
        attachments=attachments_of(payload),
        shard_bytes=shard_bytes,
        progress=progress,
        signatures=lambda made: () if who is None else (who.signed(StatementKind.CHECKPOINT, made.seal, Path(out)),),
    )


def _whole(manifest: Manifest) -> tuple[tuple[TensorRecord, ...], list[str]]:
    """The records without pieces, and of each storage that they view, in order, one of its tensors."""
    numbers: dict[int, int] = {}
    first_users: list[str] = []
    for tensor in sorted(manifest.tensors, key=lambda tensor: tensor.name.encode("utf-8")):
        if tensor.storage not in numbers:
            numbers[tensor.storage] = len(numbers)
            first_users.append(tensor.name)
    records = (replace(tensor, storage=numbers[tensor.storage]) for tensor in manifest.tensors)
    return tuple(records), first_users


def _source(manifest: Manifest, tensors: Tensors, user: TensorRecord) -> Source:
    if user.name in manifest.pieces_of:
        return Source(size_bytes=user.size_bytes, blocks=partial(tensors.in_rows, user))
    size = manifest.storages[user.storage].size_bytes
    return Source(size_bytes=size, blocks=partial(tensors.stored, user.storage))


def attachments_of(payload: Payload) -> dict[str, Blocks]:
    """The attachments of an opened checkpoint, proved by SHA-256, as :func:`ckpt.saving.writer.write` takes them."""
    attached = list(zip(payload.manifest.attachments, payload.attachments, strict=True))
    for item, data in attached:
        for fault in faults_in_attachment(payload.folder, item, data, "sha256"):
            raise fault
    return {item.path: partial(_blocks, data) for item, data in attached}


def _blocks(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), BLOCK_BYTES):
        yield data[start : start + BLOCK_BYTES]
