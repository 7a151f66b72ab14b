"""4 KB out of a checkpoint far larger than memory, from opening it on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

import ckpt
from benchmarks.plan import Call
from ckpt.format.digests import CHUNK_BYTES, both, chunks_of, sha256
from ckpt.format.manifest import FileRecord, Manifest, Placement
from ckpt.format.names import INDEX_NAME, MANIFEST_NAME
from ckpt.format.records import TensorRecord
from ckpt.format.shards import index_bytes, plan
from ckpt.format.state import Kind, Node
from ckpt.format.wire import manifest_to_bytes

NAME = "embedding.weight"
COLUMNS = 1024  # of float32: a row is 4 KiB
ROW_BYTES = 4 * COLUMNS


@contextmanager
def prepare(*, work: Path, shared: Path, size_bytes: int) -> Iterator[Call]:
    """A checkpoint of one matrix of zeros, whose file takes no room on the disk."""
    yield Call(run=lambda: sparse_checkpoint(shared / "sparse", size_bytes))


@contextmanager
def treering(*, work: Path, shared: Path) -> Iterator[Call]:
    """One row, proved by SHA-256."""
    row = _middle(shared)

    def run() -> float:
        with ckpt.open(shared / "sparse") as checkpoint:
            return float(checkpoint.slice(NAME, row).sum())

    yield Call(run=run)


@contextmanager
def with_pread(*, work: Path, shared: Path) -> Iterator[Call]:
    """The same row of the same file by its place; nothing is verified, no name is looked up."""
    row = _middle(shared)
    (file,) = (shared / "sparse").glob("weights-*.safetensors")
    place = file.stat().st_size % ROW_BYTES or ROW_BYTES  # the header: rows fill the rest

    def run() -> float:
        with open(file, "rb") as opened:
            data = os.pread(opened.fileno(), ROW_BYTES, place + row * ROW_BYTES)
        return float(torch.frombuffer(bytearray(data), dtype=torch.float32).sum())

    yield Call(run=run)


def sparse_checkpoint(folder: Path, size_bytes: int) -> None:
    """Write a checkpoint of zeros without writing the zeros.

    Args:
        folder: To be created.
        size_bytes: Of the one tensor, rounded down to whole rows.
    """
    rows = size_bytes // ROW_BYTES
    size = rows * ROW_BYTES
    record = TensorRecord(name=NAME, dtype="float32", shape=(rows, COLUMNS), strides=(COLUMNS, 1), offset=0, storage=0)
    (shard,) = plan([record], [size], shard_bytes=size)
    whole, rest = divmod(size, CHUNK_BYTES)
    pairs = [both(bytes(CHUNK_BYTES))] * whole + [both(bytes(rest))] * (rest > 0)
    chunks = chunks_of(pairs, size_bytes=size)
    name = f"weights-00001-{sha256(shard.header + chunks.digest()).hex()[:8]}.safetensors"
    folder.mkdir()
    (folder / name).write_bytes(shard.header)
    os.truncate(folder / name, len(shard.header) + size)
    file = FileRecord(
        name=name,
        size_bytes=len(shard.header) + size,
        header_bytes=len(shard.header),
        header_sha256=sha256(shard.header),
    )
    state = (
        Node(kind=Kind.DICT, count=1),
        Node(kind=Kind.STR, data=NAME.encode()),
        Node(kind=Kind.TENSOR, name=NAME),
    )
    manifest = Manifest(
        storages=(chunks,),
        placements=(Placement(file=0, offset=len(shard.header)),),
        tensors=(record,),
        state=state,
        files=(file,),
    )
    index = index_bytes(manifest)
    (folder / INDEX_NAME).write_bytes(index)
    record_of_index = FileRecord(
        name=INDEX_NAME, size_bytes=len(index), header_bytes=len(index), header_sha256=sha256(index)
    )
    manifest = replace(manifest, files=(file, record_of_index))
    (folder / MANIFEST_NAME).write_bytes(manifest_to_bytes(manifest))


def _middle(shared: Path) -> int:
    (file,) = (shared / "sparse").glob("weights-*.safetensors")
    return file.stat().st_size // ROW_BYTES // 2
