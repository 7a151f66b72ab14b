"""Rows in, a data set folder out.

The source is an iterable of blocks (column name → n raw values). Each is validated at once, the good rows are cut into
shards of equal length and the bad ones written to ``rejects.jsonl`` with row number, field, reason and what was found.
Memory stays at one block and one shard. The folder appears whole or not at all; when it exists already with the same
content, that one is opened, so a run can be repeated.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ingest.commit import staged
from ingest.dataset import Dataset, open_dataset
from ingest.errors import AllRowsRejectedError, DatasetExistsError, DatasetNotFoundError, EmptySourceError
from ingest.index import REJECTS_NAME, ContentDigest, Index, read_index, write_index
from ingest.schema import Schema
from ingest.shards import ShardEntry, write_shard
from ingest.validate import Block, Rejection, check_block

Progress = Callable[[int, int], None]
DEFAULT_SHARD_ROWS = 65_536
_NAMED = 3  # rejected rows, in an error


def ingest(
    rows: Iterable[Block],
    schema: Schema,
    out: str | Path,
    *,
    shard_rows: int = DEFAULT_SHARD_ROWS,
    progress: Progress | None = None,
) -> Dataset:
    """Validate rows and write them as memory-mapped shards.

    Args:
        rows: Blocks of raw rows: column name to n values (arrays, lists, or nested lists).
        schema: What a good row looks like.
        out: The folder to make; its parents are made too.
        shard_rows: Rows in each shard but the last, >= 1.
        progress: Called after each block with (rows read, rows rejected).

    Returns:
        The data set, opened from what was written and verified.

    Raises:
        SchemaError: A block lacks a column or has one that is no field.
        EmptySourceError, AllRowsRejectedError: There is nothing to write.
        DatasetExistsError: ``out`` holds something else.
    """
    out = Path(out)
    if shard_rows < 1:
        raise ValueError(f"shard_rows is {shard_rows}, expected at least 1")
    with staged(out) as (folder, publish):
        index = _write(rows, schema, folder, out=out, shard_rows=shard_rows, progress=progress)
        if out.exists() and not _is_empty_folder(out):
            _refuse_other_content(out, index)
        else:
            publish()
    return open_dataset(out)


def _write(
    rows: Iterable[Block], schema: Schema, folder: Path, *, out: Path, shard_rows: int, progress: Progress | None
) -> Index:
    shards = _ShardCutter(schema, folder, shard_rows=shard_rows)
    digest = ContentDigest(schema)
    rejected: Counter[str] = Counter()
    first: list[Rejection] = []
    rows_read = 0
    with (folder / REJECTS_NAME).open("w") as rejects:
        for block in rows:
            checked = check_block(schema, block, first_row=rows_read)
            rows_read += checked.rows_read
            rejected.update(rejection.reason for rejection in checked.rejections)
            _write_rejections(rejects, checked.rejections)
            first += checked.rejections[: _NAMED - len(first)]
            digest.update(checked.columns)
            shards.add(checked.columns)
            if progress is not None:
                progress(rows_read, rejected.total())
    shards.flush()
    if not rows_read:
        raise EmptySourceError
    if not shards.entries:
        raise AllRowsRejectedError(rows_read=rows_read, rejected=rejected, first=first)
    index = Index(
        schema=schema,
        rows=rows_read - rejected.total(),
        rows_read=rows_read,
        rejected=dict(rejected),
        digest=digest.hexdigest(),
        shard_rows=shard_rows,
        shards=tuple(shards.entries),
    )
    write_index(folder, index)
    return index


def _write_rejections(file: TextIO, rejections: Iterable[Rejection]) -> None:
    file.writelines(json.dumps(asdict(rejection), sort_keys=True) + "\n" for rejection in rejections)


def _refuse_other_content(out: Path, index: Index) -> None:
    try:
        found = f"the data set {read_index(out).digest}"
    except DatasetNotFoundError:
        found = "something that is no data set"
    expected = f"the data set {index.digest}"
    if found != expected:
        raise DatasetExistsError(out, found=found, expected=expected)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


class _ShardCutter:
    """Collects blocks of any length and writes shards of exactly ``shard_rows`` rows; ``flush`` writes the rest."""

    def __init__(self, schema: Schema, folder: Path, *, shard_rows: int) -> None:
        self.entries: list[ShardEntry] = []
        self._schema, self._folder, self._shard_rows = schema, folder, shard_rows
        self._pending: dict[str, list[NDArray[Any]]] = {name: [] for name in schema.names}
        self._pending_rows = 0

    def add(self, columns: dict[str, NDArray[Any]]) -> None:
        rows = len(columns[self._schema.names[0]])
        start = 0
        while start < rows:
            taken = min(rows - start, self._shard_rows - self._pending_rows)
            for name, values in columns.items():
                self._pending[name].append(values[start : start + taken])
            self._pending_rows += taken
            start += taken
            if self._pending_rows == self._shard_rows:
                self.flush()

    def flush(self) -> None:
        if not self._pending_rows:
            return
        path = self._folder / f"shard-{len(self.entries):05d}.arrow"
        columns = {name: np.concatenate(pieces) for name, pieces in self._pending.items()}
        self.entries.append(write_shard(path, self._schema, columns))
        self._pending = {name: [] for name in self._schema.names}
        self._pending_rows = 0
