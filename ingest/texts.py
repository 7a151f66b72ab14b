"""Labelled texts from outside: JSON lines, CSV or TSV files, plain or gzipped, as pairs.

A file that is of another kind, lacks a column or is no table is an error at once. A row that cannot be read, or whose
bytes are no UTF-8, stays in place with None, so that validation rejects that row with its reason instead of the file.
"""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ingest.errors import EmptySourceError, SchemaError, SourceNotFoundError

COLUMNS = ("text", "label")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = ".jsonl"

Pair = tuple[object, object]


def read_texts(path: str | Path) -> Iterator[Pair]:
    """Pairs of text and label, as the file has them.

    Args:
        path: ``.jsonl`` with an object {"text": …, "label": …} on each line, or ``.csv`` or ``.tsv`` with a header line
            that names both columns; ``.gz`` after any of these is decompressed on the way.

    Raises:
        SourceNotFoundError: There is no such file.
        EmptySourceError: There is no row in it.
        SchemaError: Its name or its header is not one of these, or its quotes do not end.
    """
    path = Path(path)
    if not path.is_file():
        raise SourceNotFoundError(path)
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind not in (*DELIMITERS, JSON_LINES):
        known = ", ".join((JSON_LINES, *DELIMITERS))
        raise SchemaError(f"'{path}' is a file of kind '{kind}', expected {known} (or with .gz after it): rename it")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        pairs = _json_lines(file) if kind == JSON_LINES else _table(file, path, delimiter=DELIMITERS[kind])
        is_empty = True
        for text, label in pairs:
            is_empty = False
            yield _decoded(text), label
    if is_empty:
        raise EmptySourceError(path)


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
    try:
        for row in rows:
            yield row["text"], row["label"]
    except csv.Error as error:
        raise SchemaError(
            f"'{path}' cannot be read beyond line {rows.line_num}: {error}; expected quotes that end, and fields of at "
            f"most {csv.field_size_limit()} characters"
        ) from error


def _decoded(text: object) -> object:
    """None for a text with bytes that are no UTF-8."""
    return None if isinstance(text, str) and any("\ud800" <= letter <= "\udfff" for letter in text) else text
