"""Labelled texts from outside: JSON lines, CSV or TSV files, plain or gzipped, as pairs.

A file that is of another kind or lacks a column is an error at once. A row that cannot be read stays in place as a pair
with None, so that validation rejects that row with its reason instead of the file.
"""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ingest.errors import SchemaError, SourceNotFoundError

COLUMNS = ("text", "label")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = ".jsonl"

Pair = tuple[object, object]


def read_texts(path: str | Path) -> Iterator[Pair]:
    """Pairs of text and label, as the file has them.

    Args:
        path: ``.jsonl`` with an object {"text": …, "label": …} on each line, or ``.csv`` or ``.tsv`` with a header line
            that names both columns; ``.gz`` after any of these is decompressed on the way. UTF-8.

    Raises:
        SourceNotFoundError: There is no such file.
        SchemaError: Its name or its header is not one of these.
    """
    path = Path(path)
    if not path.is_file():
        raise SourceNotFoundError(path)
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind not in (*DELIMITERS, JSON_LINES):
        known = ", ".join((JSON_LINES, *DELIMITERS))
        raise SchemaError(f"'{path}' is a file of kind '{kind}', expected {known} (or with .gz after it): rename it")
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        yield from _json_lines(file) if kind == JSON_LINES else _table(file, path, delimiter=DELIMITERS[kind])


def _json_lines(file: TextIO) -> Iterator[Pair]:
    for line in file:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        yield (row.get("text"), row.get("label")) if isinstance(row, dict) else (None, None)


def _table(file: TextIO, path: Path, *, delimiter: str) -> Iterator[Pair]:
    rows = csv.DictReader(file, delimiter=delimiter)
    header = list(rows.fieldnames or ())
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise SchemaError(
            f"'{path}' has the columns {header}, expected {' and '.join(COLUMNS)}: begin it with the line "
            f"{delimiter.join(COLUMNS)!r}"
        )
    for row in rows:
        yield row["text"], row["label"]
