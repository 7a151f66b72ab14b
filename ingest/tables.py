"""Number tables from outside: CSV files, plain or gzipped, as blocks of rows.

Numbers are parsed in C a block at a time. A block with something unreadable in it is parsed again line by line, and
what is no number stays in place as text, so that validation rejects that row with its reason instead of the file.
"""

import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.errors import SourceNotFoundError

BLOCK_ROWS = 512


def read_csv(path: str | Path, *, columns: int) -> Iterator[NDArray[Any]]:
    """Blocks of at most ``BLOCK_ROWS`` rows of a file without a header line.

    Args:
        path: A CSV file; a name that ends in ``.gz`` is decompressed on the way.
        columns: Cells that every line must have.

    Yields:
        float64 arrays of shape (n, columns); object arrays, with text where a cell is no number, for blocks that
        hold one. A line with another number of cells becomes one text cell and None in the rest.

    Raises:
        SourceNotFoundError: There is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise SourceNotFoundError(path)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", errors="replace") as file:  # what is no text costs its own row
        lines = (line.strip() for line in file)
        wanted = (line for line in lines if line)
        while block := list(itertools.islice(wanted, BLOCK_ROWS)):
            yield _parse(block, columns=columns)


def _parse(lines: list[str], *, columns: int) -> NDArray[Any]:
    try:
        numbers = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None)
    except ValueError:  # a cell that is no number, or lines of different lengths
        numbers = None
    if numbers is not None and numbers.shape[1] == columns:
        return numbers
    cells = np.full((len(lines), columns), None, dtype=object)
    for row, line in enumerate(lines):
        texts = line.split(",")
        cells[row] = [_number(text) for text in texts] if len(texts) == columns else [line] + [None] * (columns - 1)
    return cells


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
