"""Write a checkpoint anew with other files: the same root, the same seal, and so the same signatures."""

from functools import partial
from pathlib import Path

from ckpt.disk.hashing import Progress
from ckpt.errors import RootMismatchError
from ckpt.format.manifest import Manifest
from ckpt.format.shards import check_shard_bytes
from ckpt.reading.payload import open_payload
from ckpt.reading.tensors import Tensors
from ckpt.rewriting.consolidating import attachments_of
from ckpt.saving.memory import Source
from ckpt.saving.writer import write
from ckpt.signatures.trust import Trusted, as_trust


def reshard(
    path: Path | str,
    out: Path | str,
    *,
    shard_bytes: int,
    trust: Trusted | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Write the checkpoint at ``path`` in weights files of another size; all that is beside them comes along.

    Every byte is proved by SHA-256 before it is written. Of adopted files it makes files of this format.

    Args:
        path: A checkpoint, also an adopted one.
        out: The checkpoint folder to be.
        shard_bytes: Size at which a weights file closes, > 0; one larger tensor still is one file.
        trust: Whose signature ``path`` must have.
        progress: Called with (bytes written, bytes in all).

    Returns:
        The new manifest, of the same root and seal.

    Raises:
        CorruptChunkError, CorruptFileError: bytes are not what the manifest states; nothing was written.
        SignatureError: nobody who is trusted has signed it.
        DestinationError: ``out`` exists.
    """
    check_shard_bytes(shard_bytes)
    payload = open_payload(path, attachments=True, signatures=True, trust=as_trust(trust))
    manifest, tensors = payload.manifest, Tensors(payload, algorithm="sha256")

    def accept(written: Manifest) -> None:
        if written.seal != manifest.seal:  # a fault of ours, found before anybody relies on it
            raise RootMismatchError(path=Path(out), found=written.seal, expected=manifest.seal)

    return write(
        out,
        records=manifest.tensors,
        sources=[
            Source(size_bytes=chunks.size_bytes, blocks=partial(tensors.stored, index))
            for index, chunks in enumerate(manifest.storages)
        ],
        state=manifest.state,
        metadata=manifest.metadata,
        attachments=attachments_of(payload),
        pieces=manifest.pieces,
        producer=manifest.producer,
        shard_bytes=shard_bytes,
        progress=progress,
        accept=accept,
        signatures=lambda _: payload.signatures,
    )
