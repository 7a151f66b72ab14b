"""Blocks of raw rows against a schema.

A block is a mapping of column name to n values. Each column is checked as one array (a few NumPy passes, no Python per
row); only a block whose column is ragged or mixed is looked at row by row. The outcome is a code per row, the first
reason that applies in the order of ``REASONS``, and the values in the field's dtype, with zeros where a row is bad.
Nothing is repaired: a row is taken as it is or rejected with its reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.errors import SchemaError
from ingest.mark import Mark
from ingest.schema import Field, Schema

REASONS = (
    "wrong-type",
    "wrong-shape",
    "not-finite",
    "out-of-range",
    "unknown-value",
    "header",  # this one and the next two are marked by who reads a table
    "empty-cell",
    "wrong-width",
)
_FOUND = 120  # characters of what was found
GOOD = -1  # a row's code is GOOD or an index into REASONS

Codes = NDArray[np.int8]
Column = Sequence[Any] | NDArray[Any]
Block = Mapping[str, Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One bad row: its number in the source (from 0), the field, the reason, and what was found there."""

    row: int
    field: str
    reason: str
    found: str

    def __str__(self) -> str:
        """For people, who count from 1; blank lines of a file are no rows."""
        return f"row {self.row + 1}: {self.field}: {self.reason}: {self.found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The good rows of a block, column by column, and the bad ones."""

    columns: dict[str, NDArray[Any]]
    rejections: tuple[Rejection, ...]
    rows_read: int


def check_block(schema: Schema, block: Block, *, first_row: int) -> Checked:
    """Hold one block against the schema.

    Args:
        schema: What every row must look like.
        block: Column name to n values; columns that are no field are refused, since they hint at a wrong source.
        first_row: The source's row number of the block's first row, for the rejections.

    Raises:
        SchemaError: A column is missing, unknown, or longer than another: the block itself is wrong, not its rows.
    """
    rows = _common_length(schema, block)
    codes = np.full(rows, GOOD, dtype=np.int8)
    culprit = np.zeros(rows, dtype=np.int64)
    columns = {}
    for position, field in enumerate(schema.fields):
        columns[field.name], found = check_column(field, block[field.name])
        newly_bad = (codes == GOOD) & (found != GOOD)
        codes[newly_bad], culprit[newly_bad] = found[newly_bad], position
    bad = np.flatnonzero(codes != GOOD)
    rejections = tuple(
        _rejection(schema.fields[culprit[row]], block, row=int(row), code=int(codes[row]), first_row=first_row)
        for row in bad
    )
    if bad.size:
        columns = {name: values[codes == GOOD] for name, values in columns.items()}
    return Checked(columns=columns, rejections=rejections, rows_read=rows)


def check_column(field: Field, raw: Column) -> tuple[NDArray[Any], Codes]:
    """The column in the field's dtype, shape (n, \\*field.shape), and a code for each row."""
    try:
        array = np.asarray(raw)
    except ValueError:  # ragged: NumPy refuses rows of different shapes
        return _check_row_by_row(field, raw)
    if array.dtype.kind not in "uif" or array.shape[1:] != field.shape:
        return _check_row_by_row(field, raw)
    return _check_array(field, array)


def _common_length(schema: Schema, block: Block) -> int:
    if set(block) != set(schema.names):
        raise SchemaError(
            f"a block of rows has the columns {sorted(block)}, expected {sorted(schema.names)}: "
            "make the source yield every field of the schema and no other"
        )
    lengths = {name: len(block[name]) for name in schema.names}
    if len(set(lengths.values())) != 1:
        raise SchemaError(f"the columns of a block have different lengths: {lengths}")
    return next(iter(lengths.values()))


def _check_row_by_row(field: Field, raw: Column) -> tuple[NDArray[Any], Codes]:
    values = np.zeros((len(raw), *field.shape), dtype=field.dtype)
    codes = np.full(len(raw), GOOD, dtype=np.int8)
    for row, raw_cell in enumerate(raw):
        mark, cell = _mark_in(raw_cell), _as_array(raw_cell)
        if mark is not None:
            codes[row] = REASONS.index(mark.reason)
        elif cell is None or cell.dtype.kind not in "uif":
            codes[row] = REASONS.index("wrong-type")
        elif cell.shape != field.shape:
            codes[row] = REASONS.index("wrong-shape")
        else:
            checked, code = _check_array(field, cell[np.newaxis])
            values[row], codes[row] = checked[0], code[0]
    return values, codes


def _mark_in(cell: Any) -> Mark | None:
    """The first mark among a row's elements."""
    if isinstance(cell, np.ndarray) and cell.dtype != object:
        return None
    elements = cell.flat if isinstance(cell, np.ndarray) else (cell,)
    return next((element for element in elements if isinstance(element, Mark)), None)


def _as_array(cell: Any) -> NDArray[Any] | None:
    """One row's value with the dtype its elements really have; None when it is ragged."""
    try:
        return np.asarray(cell.tolist() if isinstance(cell, np.ndarray) and cell.dtype == object else cell)
    except ValueError:
        return None


def _check_array(field: Field, array: NDArray[Any]) -> tuple[NDArray[Any], Codes]:
    flat = array.reshape(len(array), -1)
    codes = np.full(len(array), GOOD, dtype=np.int8)
    # Marked from the last reason to the first, so that the first that applies stands.
    if field.allowed is not None:
        codes[~np.isin(flat, field.allowed).all(axis=1)] = REASONS.index("unknown-value")
    low, high = _bounds(field)
    codes[((flat < low) | (flat > high)).any(axis=1)] = REASONS.index("out-of-range")
    if array.dtype.kind == "f":
        finite = np.isfinite(flat)
        if np.dtype(field.dtype).kind in "ui":
            codes[(finite & (flat != np.trunc(flat))).any(axis=1)] = REASONS.index("wrong-type")
        codes[~finite.all(axis=1)] = REASONS.index("not-finite")
    bad = codes != GOOD
    if bad.any():
        array = array.copy()
        array[bad] = 0  # a NaN or 300 must not reach the cast below
    return array.astype(field.dtype, copy=False), codes


def _bounds(field: Field) -> tuple[float, float]:
    """The tighter of the field's own bounds and what its dtype can hold."""
    dtype = np.dtype(field.dtype)
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    low = limits.min if field.low is None else max(field.low, limits.min)
    high = limits.max if field.high is None else min(field.high, limits.max)
    return low, high


def _rejection(field: Field, block: Block, *, row: int, code: int, first_row: int) -> Rejection:
    cell = block[field.name][row]
    mark = _mark_in(cell)
    if mark is not None:
        return Rejection(row=first_row + row, field=field.name, reason=mark.reason, found=mark[:_FOUND])
    found = np.array2string(np.asarray(cell, dtype=object), threshold=8, edgeitems=2, separator=",")
    reason = REASONS[code]
    if reason == "wrong-shape":
        found = f"shape {np.shape(cell)}"
    elif reason != "wrong-type" and field.shape:
        found = _first_offender(field, np.asarray(cell))
    return Rejection(row=first_row + row, field=field.name, reason=reason, found=found[:_FOUND])


def _first_offender(field: Field, cell: NDArray[Any]) -> str:
    """The element that broke the rule, and where in the row's value it stands."""
    numbers = np.asarray(cell.tolist())
    low, high = _bounds(field)
    broken = ~np.isfinite(numbers) | (numbers < low) | (numbers > high)
    if not broken.any() and field.allowed is not None:
        broken = ~np.isin(numbers, field.allowed)
    place = tuple(int(axis[0]) for axis in np.nonzero(broken))
    return f"{numbers[place]} at {list(place)}"
