"""What a row must look like.

A ``Schema`` is a tuple of ``Field``s: name, dtype, shape, and the values allowed. It is a frozen value, checked when it
is built, and it has one JSON form (sorted keys), which the index stores and the data set's digest covers. How rows are
held against it is ``validate``'s business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest.errors import SchemaError

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One column.

    Args:
        name: Column name, not empty.
        dtype: One of ``DTYPES``; values that it cannot hold exactly (integers) or in range (floats) are rejected.
        shape: Shape of one row's value, each dimension >= 1; ``()`` is a scalar.
        low, high: Inclusive bounds for each element; None leaves that side open.
        allowed: The only values an element may have; None allows all.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None
    allowed: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise SchemaError("a field has an empty name: give every field one")
        if self.dtype not in DTYPES:
            raise SchemaError(f"field '{self.name}' has dtype '{self.dtype}', expected one of {', '.join(DTYPES)}")
        if any(size < 1 for size in self.shape):
            raise SchemaError(f"field '{self.name}' has shape {self.shape}, expected every dimension to be at least 1")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise SchemaError(f"field '{self.name}' has low {self.low} above high {self.high}: swap them")
        if self.allowed is not None and not self.allowed:
            raise SchemaError(f"field '{self.name}' allows no value at all: leave allowed out or list some")

    @property
    def width(self) -> int:
        """Elements in one row's value."""
        return int(np.prod(self.shape, dtype=np.int64))

    def to_json(self) -> dict[str, Any]:
        """The canonical form that the index stores."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "low": self.low,
            "high": self.high,
            "allowed": None if self.allowed is None else list(self.allowed),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The fields of a row, and which one is the label (None where there is none)."""

    fields: tuple[Field, ...]
    label: str | None = None

    def __post_init__(self) -> None:
        if not self.fields:
            raise SchemaError("a schema needs at least one field")
        if len(set(self.names)) != len(self.fields):
            raise SchemaError(f"field names repeat in {self.names}: give every field its own")
        if self.label is not None and self.label not in self.names:
            raise SchemaError(f"the label '{self.label}' is no field; the fields are {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Field names, in order."""
        return tuple(field.name for field in self.fields)

    def to_json(self) -> dict[str, Any]:
        """The canonical form that the index stores and the digest covers."""
        return {"fields": [field.to_json() for field in self.fields], "label": self.label}

    @staticmethod
    def from_json(form: Mapping[str, Any]) -> "Schema":
        """The schema that ``to_json`` wrote; KeyError, TypeError or SchemaError when the form is not one."""
        fields = tuple(
            Field(
                name=str(entry["name"]),
                dtype=str(entry["dtype"]),
                shape=tuple(int(size) for size in entry["shape"]),
                low=entry["low"],
                high=entry["high"],
                allowed=None if entry["allowed"] is None else tuple(entry["allowed"]),
            )
            for entry in form["fields"]
        )
        return Schema(fields=fields, label=form["label"])
