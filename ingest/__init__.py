"""Bytes from outside become training data that can be trusted, mapped and resumed.

A source yields *blocks* of raw rows (column name → values). A ``Schema`` says what a good row is. ``ingest`` holds the
one against the other and leaves a folder:

    index.json           schema, counts, rejects by reason, shards with SHA-256, content digest
    shard-00000.arrow …  Arrow IPC, one record batch each, mapped into memory when read
    rejects.jsonl        one line for each rejected row: number, field, reason, what was found

The folder appears whole or not at all, and its digest names the rows whatever the shard size. ``open`` verifies it
and gives a ``Dataset``: views of mapped bytes that can be split, selected and walked in batches. The order of the
batches is a function of (seed, epoch), so training stops anywhere and goes on at exactly the next row, in O(1).

    schema = Schema(fields=(Field(name="x", dtype="float32", shape=(4,)), Field(name="y", dtype="int64")), label="y")
    data = ingest.ingest(blocks, schema, "data/flowers")
    train, held_out = data.split(held_out=0.1)
    for batch in train.batches(64, seed=0, start=(2, 128)):
        ...

What the rows mean, and where they come from, is a recipe's business. Errors are in ``ingest.errors``.
"""

from ingest.dataset import Batch, Dataset, Position
from ingest.dataset import open_dataset as open
from ingest.errors import (
    AllRowsRejectedError,
    CorruptIndexError,
    CorruptShardError,
    DatasetExistsError,
    DatasetNotFoundError,
    EmptySourceError,
    IngestError,
    SchemaError,
    SourceNotFoundError,
    UnknownColumnError,
)
from ingest.schema import Field, Schema
from ingest.tables import read_csv
from ingest.texts import read_texts
from ingest.validate import REASONS, Block, Rejection
from ingest.writer import ingest

__all__ = [
    "REASONS",
    "AllRowsRejectedError",
    "Batch",
    "Block",
    "CorruptIndexError",
    "CorruptShardError",
    "Dataset",
    "DatasetExistsError",
    "DatasetNotFoundError",
    "EmptySourceError",
    "Field",
    "IngestError",
    "Position",
    "Rejection",
    "Schema",
    "SchemaError",
    "SourceNotFoundError",
    "UnknownColumnError",
    "ingest",
    "open",
    "read_csv",
    "read_texts",
]
