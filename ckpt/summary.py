"""What is in a checkpoint, told from its manifest alone: the work behind ``ckpt inspect``."""

from dataclasses import dataclass
from pathlib import Path

from ckpt.manifest import Manifest
from ckpt.payload import read_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts and names for people; sizes in bytes."""

    path: Path
    root: str
    seal: str
    tensors: int
    parameters: int
    payload_bytes: int
    chunks: int
    files: tuple[str, ...]
    attachments: tuple[str, ...]
    metadata: dict[str, str]
    producer: dict[str, str]


def inspect(path: Path | str) -> Summary:
    """Summarise a checkpoint without reading its weights.

    Raises:
        NotACheckpointError: no manifest there.
    """
    return summarize(Path(path), read_manifest(path))


def summarize(path: Path, manifest: Manifest) -> Summary:
    return Summary(
        path=path,
        root=manifest.root,
        seal=manifest.seal,
        tensors=len(manifest.tensors),
        parameters=sum(tensor.size_bytes // tensor.item_bytes for tensor in manifest.tensors),
        payload_bytes=manifest.payload_bytes,
        chunks=sum(len(storage.crc32) for storage in manifest.storages),
        files=tuple(record.name for record in manifest.files),
        attachments=tuple(item.path for item in manifest.attachments),
        metadata=dict(manifest.metadata),
        producer=dict(manifest.producer),
    )
