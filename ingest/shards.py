"""One shard: an Arrow IPC file with one record batch, mapped into memory when read.

A scalar field is a primitive column, any other a fixed-size list, so each field of a shard is one contiguous buffer
that NumPy and torch view without a copy. The mapping lives as long as an array of it; no file stays open. A shard's
bytes are hashed through the very mapping that is then handed out.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.errors import CorruptShardError
from ingest.schema import Field, Schema

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """What the index says of one shard."""

    file: str
    rows: int
    size_bytes: int
    sha256: str


def write_shard(path: Path, schema: Schema, columns: Mapping[str, NDArray[Any]]) -> ShardEntry:
    """Write the rows as one record batch and say what was written."""
    arrays = [_to_arrow(field, columns[field.name]) for field in schema.fields]
    batch = pa.record_batch(arrays, names=list(schema.names))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    return ShardEntry(file=path.name, rows=batch.num_rows, size_bytes=path.stat().st_size, sha256=digest)


def open_shard(folder: Path, schema: Schema, entry: ShardEntry) -> Columns:
    """The shard's columns as read-only views of its mapped bytes, after checking them.

    Raises:
        CorruptShardError: The file is missing, or its size, SHA-256 or layout is not what the index says.
    """
    path = folder / entry.file
    if not path.is_file():
        raise CorruptShardError(path, expected="a file", found="nothing")
    if path.stat().st_size != entry.size_bytes:
        raise CorruptShardError(path, expected=f"{entry.size_bytes} bytes", found=f"{path.stat().st_size} bytes")
    with pa.memory_map(str(path)) as source:
        mapped = source.read_buffer(entry.size_bytes)
    digest = hashlib.sha256(mapped).hexdigest()
    if digest != entry.sha256:
        raise CorruptShardError(path, expected=f"sha256 {entry.sha256[:16]}…", found=f"sha256 {digest[:16]}…")
    batch = pa.ipc.open_file(mapped).get_batch(0)
    if batch.num_rows != entry.rows or tuple(batch.schema.names) != schema.names:
        found = f"{batch.num_rows} rows of {batch.schema.names}"
        raise CorruptShardError(path, expected=f"{entry.rows} rows of {list(schema.names)}", found=found)
    return {field.name: _to_numpy(field, batch.column(field.name)) for field in schema.fields}


def _to_arrow(field: Field, values: NDArray[Any]) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return flat if not field.shape else pa.FixedSizeListArray.from_arrays(flat, field.width)


def _to_numpy(field: Field, column: pa.Array) -> NDArray[Any]:
    flat = column.flatten() if field.shape else column
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=True)
    return values.reshape(-1, *field.shape)
