"""Number tables from outside: CSV files, plain or gzipped, as blocks of rows.

Numbers are parsed in C a block at a time. A block with something unreadable in it is parsed again line by line, and
what is no number stays in place as text, so that validation rejects that row with its reason instead of the file. A
header line, an empty cell and a line of another length are marked as such.
"""

import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.errors import EmptySourceError, SourceNotFoundError
from ingest.mark import Mark

BLOCK_ROWS = 512


def read_csv(path: str | Path, *, columns: int) -> Iterator[NDArray[Any]]:
    """Blocks of at most ``BLOCK_ROWS`` rows of a file without a header line.

    Args:
        path: A CSV file; a name that ends in ``.gz`` is decompressed on the way.
        columns: Cells that every line must have.

    Yields:
        float64 arrays of shape (n, columns); object arrays, with text where a cell is no number, for blocks that
        hold one. In place of an empty cell, and of every cell of a header or of a line with another number of cells,
        there is a ``Mark``.

    Raises:
        SourceNotFoundError: There is no such file.
        EmptySourceError: There is no line in it.
    """
    path = Path(path)
    if not path.is_file():
        raise SourceNotFoundError(path)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", errors="replace") as file:  # what is no text costs its own row
        lines = (line.strip() for line in file)
        wanted = (line for line in lines if line)
        first_row = 0
        while block := list(itertools.islice(wanted, BLOCK_ROWS)):
            yield _parse(block, columns=columns, first_row=first_row)
            first_row += len(block)
    if not first_row:
        raise EmptySourceError(path)


def _parse(lines: list[str], *, columns: int, first_row: int) -> NDArray[Any]:
    try:
        numbers = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None)
    except ValueError:  # a cell that is no number, or lines of different lengths
        numbers = None
    if numbers is not None and numbers.shape[1] == columns:
        return numbers
    cells = np.full((len(lines), columns), None, dtype=object)
    for row, line in enumerate(lines):
        texts = line.split(",")
        if len(texts) != columns:
            count = f"{len(texts)} cell{'s' * (len(texts) != 1)}, expected {columns}: {line}"
            cells[row] = [Mark(count, reason="wrong-width")] * columns
        elif first_row + row == 0 and all(isinstance(_number(text), str) and text.strip() for text in texts):
            cells[row] = [Mark(line, reason="header")] * columns
        else:
            cells[row] = [
                _number(text) if text.strip() else Mark(f"cell {place} of {columns}", reason="empty-cell")
                for place, text in enumerate(texts, start=1)
            ]
    return cells


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
