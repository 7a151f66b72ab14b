"""``index.json``: what a data set's folder holds.

A small JSON file beside the shards: the schema, how many rows were read, taken and rejected by reason, the shards with
their sizes and SHA-256, and the content digest. The content digest covers schema and values in row order and nothing of
how they are stored, so the same rows have the same digest whatever the shard size.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.errors import CorruptIndexError, DatasetNotFoundError, SchemaError
from ingest.schema import Schema
from ingest.shards import ShardEntry

FILE_NAME = "index.json"
REJECTS_NAME = "rejects.jsonl"
FORMAT = 1
_DOMAIN = b"treering/dataset/v1\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A data set as its index describes it.

    ``shard_rows`` is the length of every shard but the last; ``rejected`` counts rows by reason; ``digest`` is
    "sha256:<hex>".
    """

    schema: Schema
    rows: int
    rows_read: int
    rejected: dict[str, int]
    digest: str
    shard_rows: int
    shards: tuple[ShardEntry, ...]


class ContentDigest:
    """SHA-256 over schema and values, fed block by block: one running hash per field."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._rows = 0
        self._fields = {name: hashlib.sha256() for name in schema.names}

    def update(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add the next rows; values are hashed little-endian, in row order."""
        for name, running in self._fields.items():
            values = columns[name]
            running.update(np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).data)
        self._rows += len(columns[self._schema.names[0]])

    def hexdigest(self) -> str:
        """The digest of all rows so far, as "sha256:<hex>"."""
        schema = json.dumps(self._schema.to_json(), sort_keys=True).encode()
        fields = (running.digest() for running in self._fields.values())
        return digest_of(schema, self._rows.to_bytes(8, "little"), *fields)


def digest_of(*parts: bytes) -> str:
    """Domain-separated SHA-256 over length-prefixed parts, as "sha256:<hex>"."""
    total = hashlib.sha256(_DOMAIN + len(parts).to_bytes(8, "little"))
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return f"sha256:{total.hexdigest()}"


def write_index(folder: Path, index: Index) -> None:
    """Write ``index.json`` into the folder."""
    form = {
        "format": FORMAT,
        "schema": index.schema.to_json(),
        "rows": index.rows,
        "rows_read": index.rows_read,
        "rejected": index.rejected,
        "digest": index.digest,
        "shard_rows": index.shard_rows,
        "shards": [asdict(shard) for shard in index.shards],
    }
    (folder / FILE_NAME).write_text(json.dumps(form, indent=1, sort_keys=True) + "\n")


def read_index(folder: Path) -> Index:
    """Read and check ``index.json``.

    Raises:
        DatasetNotFoundError: There is none.
        CorruptIndexError: It is no JSON, of another format, or its counts disagree.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise DatasetNotFoundError(folder)
    try:
        index = _parse(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, SchemaError) as error:
        raise CorruptIndexError(path, found=f"{type(error).__name__}: {error}") from error
    _check_counts(path, index)
    return index


def _parse(form: Mapping[str, Any]) -> Index:
    if form["format"] != FORMAT:
        raise ValueError(f"format {form['format']}, this program reads format {FORMAT}")
    return Index(
        schema=Schema.from_json(form["schema"]),
        rows=int(form["rows"]),
        rows_read=int(form["rows_read"]),
        rejected={str(reason): int(count) for reason, count in form["rejected"].items()},
        digest=str(form["digest"]),
        shard_rows=int(form["shard_rows"]),
        shards=tuple(ShardEntry(**entry) for entry in form["shards"]),
    )


def _check_counts(path: Path, index: Index) -> None:
    _expect(path, sum(shard.rows for shard in index.shards), index.rows, "rows in the shards")
    _expect(path, index.rows + sum(index.rejected.values()), index.rows_read, "rows taken and rejected")
    for shard in index.shards[:-1]:
        _expect(path, shard.rows, index.shard_rows, f"rows in {shard.file}")
    _check_names(path, (shard.file for shard in index.shards))


def _expect(path: Path, found: int, expected: int, what: str) -> None:
    if found != expected:
        raise CorruptIndexError(path, found=f"{found} {what}, expected {expected}")


def _check_names(path: Path, names: Iterable[str]) -> None:
    for name in names:
        if Path(name).name != name:
            raise CorruptIndexError(path, found=f"shard name '{name}', expected a plain file name")
