"""A data set as training sees it: rows of a mapped folder, in an order that can be resumed exactly.

A ``Dataset`` is a frozen view: the mapped shards, which rows of them it shows, and where their labels come from.
Splitting, selecting and shuffling labels give new views of the same mapped bytes. Only rows that are asked for are
copied, into tensors of their own. Batches hold no state: (seed, epoch, row) says everything.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ingest.errors import SchemaError, UnknownColumnError
from ingest.index import REJECTS_NAME, Index, digest_of, read_index
from ingest.order import Rows, content_fraction, rows_at
from ingest.schema import Schema
from ingest.shards import Columns, open_shard
from ingest.validate import Rejection


class Position(NamedTuple):
    """Where training stands: rows of an epoch, not batches, so that another batch size resumes at the same row."""

    epoch: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows: ``batch["image"]`` is a tensor; ``next`` is the position to resume from once they are used."""

    columns: dict[str, Tensor]
    position: Position
    next: Position

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.columns:
            raise UnknownColumnError(name, known=self.columns)
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Rows of a folder.

    ``rows`` are the shown rows' numbers in the folder; ``label_rows`` the rows whose labels they carry (the same, until
    labels are shuffled). ``digest`` names the content of this view.
    """

    folder: Path
    index: Index
    shards: tuple[Columns, ...]
    rows: Rows
    label_rows: Rows
    digest: str

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Tensor:
        """One whole column of this view, copied into a tensor of shape (rows, \\*field shape)."""
        return torch.from_numpy(self._gather(name, np.arange(len(self))))

    @property
    def schema(self) -> Schema:
        """What every row looks like."""
        return self.index.schema

    def rejections(self) -> Iterator[Rejection]:
        """The rows of the source that are not in the folder, in its order."""
        with (self.folder / REJECTS_NAME).open() as lines:
            yield from (Rejection(**json.loads(line)) for line in lines)

    def arrays(self, name: str) -> tuple[NDArray[Any], ...]:
        """A field of the whole folder without a copy: one read-only view of mapped bytes for each shard."""
        return tuple(shard[name] for shard in self.shards)

    def take(self, positions: Sequence[int] | Rows) -> dict[str, Tensor]:
        """The rows at these positions of the view, every field, copied into tensors."""
        wanted = np.asarray(positions, dtype=np.int64)
        return {name: torch.from_numpy(self._gather(name, wanted)) for name in self.schema.names}

    def batches(
        self, batch_size: int, *, seed: int, start: tuple[int, int] = (0, 0), epochs: int | None = None
    ) -> Iterator[Batch]:
        """Batches in the order of (seed, epoch), from any position on, without replaying what came before.

        Args:
            batch_size: Rows in each batch; the last of an epoch may be smaller.
            seed: Names the order; the same seed gives the same batches on every machine.
            start: (epoch, row) to begin at, as ``Batch.next`` gave it.
            epochs: Stop before this epoch; None goes on without end.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected at least 1")
        first = Position(*start)
        if first.epoch < 0 or not 0 <= first.row < len(self):
            raise ValueError(f"start is {tuple(first)}, expected an epoch >= 0 and a row below {len(self)} rows")
        wanted = itertools.count(first.epoch) if epochs is None else range(first.epoch, epochs)
        for epoch in wanted:
            for row in range(first.row if epoch == first.epoch else 0, len(self), batch_size):
                yield self._batch(Position(epoch, row), min(row + batch_size, len(self)), seed=seed)

    def split(self, *, held_out: float, seed: int = 0) -> tuple["Dataset", "Dataset"]:
        """Two views, (training, held out), cut by each row's content.

        A row's side depends on its values and the seed alone: equal rows are on one side, and a row stays on its side
        when others are added. So the share of held-out rows is close to ``held_out``, not exact.
        """
        if not 0 < held_out < 1:
            raise ValueError(f"held_out is {held_out}, expected a share between 0 and 1")
        columns = [self._gather(name, np.arange(len(self))) for name in self.schema.names]
        aside = np.array(
            [
                content_fraction(b"".join(values.tobytes() for values in row), seed=seed) < held_out
                for row in zip(*columns, strict=True)
            ],
            dtype=bool,
        )
        for rows, side in ((~aside, "training"), (aside, "held-out")):
            if not rows.any():
                raise ValueError(f"no row of {len(self)} falls on the {side} side at held_out={held_out}: add rows")
        return self.select(np.flatnonzero(~aside)), self.select(np.flatnonzero(aside))

    def select(self, positions: Sequence[int] | Rows) -> "Dataset":
        """The view that shows these positions of this one, in this order."""
        chosen = np.asarray(positions, dtype=np.int64)
        return self._view(rows=self.rows[chosen], label_rows=self.label_rows[chosen])

    def with_shuffled_labels(self, seed: int) -> "Dataset":
        """The same rows with each other's labels: data that teaches nothing, for testing what must catch it."""
        if self.schema.label is None:
            raise SchemaError(f"the data set in '{self.folder}' has no label field to shuffle")
        order = rows_at(0, len(self), length=len(self), seed=seed, epoch=0)
        return self._view(rows=self.rows, label_rows=self.label_rows[order])

    def _view(self, *, rows: Rows, label_rows: Rows) -> "Dataset":
        digest = digest_of(self.index.digest.encode(), rows.astype("<i8").tobytes(), label_rows.astype("<i8").tobytes())
        return replace(self, rows=rows, label_rows=label_rows, digest=digest)

    def _batch(self, position: Position, stop: int, *, seed: int) -> Batch:
        wanted = rows_at(position.row, stop, length=len(self), seed=seed, epoch=position.epoch)
        following = Position(position.epoch, stop) if stop < len(self) else Position(position.epoch + 1, 0)
        return Batch(columns=self.take(wanted), position=position, next=following)

    def _gather(self, name: str, positions: Rows) -> NDArray[Any]:
        if name not in self.schema.names:
            raise UnknownColumnError(name, known=self.schema.names)
        rows = (self.label_rows if name == self.schema.label else self.rows)[positions]
        shard_of, row_in_shard = np.divmod(rows, self.index.shard_rows)
        first = self.shards[0][name]
        gathered = np.empty((len(rows), *first.shape[1:]), dtype=first.dtype)
        for shard in np.unique(shard_of):
            here = shard_of == shard
            gathered[here] = self.shards[shard][name][row_in_shard[here]]
        return gathered


def open_dataset(folder: str | Path) -> Dataset:
    """Open a folder that ``ingest`` wrote, checking every shard against the index.

    Raises:
        DatasetNotFoundError: No data set is there.
        CorruptIndexError, CorruptShardError: It is not as it was written.
    """
    folder = Path(folder)
    index = read_index(folder)
    shards = tuple(open_shard(folder, index.schema, entry) for entry in index.shards)
    rows = np.arange(index.rows, dtype=np.int64)
    return Dataset(folder=folder, index=index, shards=shards, rows=rows, label_rows=rows, digest=index.digest)
