"""Tensors on the wire: Open Inference Protocol datatypes, as raw bytes or as JSON numbers.

Promises: an array decoded here has exactly the datatype and shape that were declared, or a RequestError names the
tensor. Binary data is little-endian and row-major and is not copied. Values that JSON cannot carry exactly (FP16 and
BF16 by the protocol, integers out of range, non-finite floats) are refused, never rounded or replaced.

BF16 has no NumPy dtype: its arrays hold the 16 bits as unsigned integers. Which tensors a model takes is the business
of ``protocol``; this module imports no torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.errors import RequestError, ServingError, quote

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Datatype:
    """A datatype of the protocol.

    Attributes:
        name: As on the wire, for example ``FP32``.
        torch_name: The torch dtype's name, for example ``float32``.
        wire: The NumPy dtype of its bytes, little-endian.
        json_types: Python types of a JSON element; empty where JSON is not allowed.
    """

    name: str
    torch_name: str
    wire: np.dtype[Any]
    json_types: tuple[type, ...]


DATATYPES = {
    name: Datatype(name=name, torch_name=torch_name, wire=np.dtype(wire), json_types=json_types)
    for name, torch_name, wire, json_types in (
        ("BOOL", "bool", "?", (bool,)),
        ("UINT8", "uint8", "<u1", (int,)),
        ("UINT16", "uint16", "<u2", (int,)),
        ("UINT32", "uint32", "<u4", (int,)),
        ("UINT64", "uint64", "<u8", (int,)),
        ("INT8", "int8", "<i1", (int,)),
        ("INT16", "int16", "<i2", (int,)),
        ("INT32", "int32", "<i4", (int,)),
        ("INT64", "int64", "<i8", (int,)),
        ("FP16", "float16", "<f2", ()),
        ("BF16", "bfloat16", "<u2", ()),
        ("FP32", "float32", "<f4", (int, float)),
        ("FP64", "float64", "<f8", (int, float)),
    )
}
BY_TORCH_NAME = {datatype.torch_name: datatype for datatype in DATATYPES.values()}


def datatype_of(dtype: object) -> Datatype | None:
    """Find the protocol's datatype of a torch dtype or its name; None when it has none (complex, quantised)."""
    return BY_TORCH_NAME.get(str(dtype).removeprefix("torch."))


def from_binary(data: memoryview, *, name: str, datatype: Datatype, shape: tuple[int, ...]) -> Array:
    """View ``data`` as the tensor ``name``.

    Raises:
        RequestError: The bytes are not as many as the shape needs.
    """
    expected_bytes = math.prod(shape) * datatype.wire.itemsize
    if len(data) != expected_bytes:
        raise RequestError(
            f"binary data of input {quote(name)}",
            found=f"{len(data)} bytes",
            expected=f"{expected_bytes} bytes ({datatype.name}, shape {list(shape)})",
        )
    return np.frombuffer(data, dtype=datatype.wire).reshape(shape)


def from_json(data: object, *, name: str, datatype: Datatype, shape: tuple[int, ...]) -> Array:
    """Read JSON numbers, flat or nested as the shape says, row-major, as the tensor ``name``.

    Raises:
        RequestError: A wrong length, nesting, element type or range, or a datatype that JSON may not carry.
    """
    if not datatype.json_types:
        raise RequestError(
            f"data of input {quote(name)}",
            found=f"{datatype.name} as JSON",
            expected="binary data for this datatype",
            next_step="Send it with 'binary_data_size'.",
        )
    elements = _flatten(data, name=name, shape=shape)
    strangers = set(map(type, elements)) - set(datatype.json_types)
    if strangers:
        raise RequestError(
            f"data of input {quote(name)}",
            found=f"elements of JSON type {', '.join(sorted(kind.__name__ for kind in strangers))}",
            expected=f"{datatype.name} elements ({' or '.join(kind.__name__ for kind in datatype.json_types)})",
        )
    return _pack(elements, name=name, datatype=datatype).reshape(shape)


def _flatten(data: object, *, name: str, shape: tuple[int, ...]) -> list[Any]:
    """Take flat data as it is, and nested data level by level; each level must have the shape's length."""
    if not isinstance(data, list):
        raise RequestError(f"data of input {quote(name)}", found=type(data).__name__, expected="a JSON array")
    nested = bool(data) and isinstance(data[0], list)
    lengths = shape if nested else (math.prod(shape),)
    level: list[Any] = [data]
    for depth, length in enumerate(lengths):
        for item in level:
            if not isinstance(item, list) or len(item) != length:
                raise RequestError(
                    f"data of input {quote(name)} at nesting level {depth}",
                    found=f"{len(item)} elements" if isinstance(item, list) else type(item).__name__,
                    expected=f"{length} elements (shape {list(shape)})",
                )
        level = list(chain.from_iterable(level))
    return level


def _pack(elements: Sequence[Any], *, name: str, datatype: Datatype) -> Array:
    """Make an array of checked element types; a value outside the datatype's range is refused."""
    try:
        with np.errstate(over="ignore"):
            array = np.array(elements, dtype=datatype.wire)
    except OverflowError:
        array = None
    if array is None or (datatype.wire.kind == "f" and not np.isfinite(array).all()):
        raise RequestError(
            f"data of input {quote(name)}",
            found="a number outside the datatype's range",
            expected=f"numbers that {datatype.name} can hold",
        )
    return array


def to_json(array: Array, *, name: str, datatype: Datatype) -> Array:
    """Flatten an output for JSON.

    Raises:
        RequestError: The datatype may not travel as JSON.
        ServingError: A value is NaN or infinite, which JSON cannot say.
    """
    if not datatype.json_types:
        raise RequestError(
            f"output {quote(name)}",
            found=f"{datatype.name} asked for as JSON",
            expected="binary data for this datatype",
            next_step="Ask for it with 'binary_data': true.",
        )
    if datatype.wire.kind == "f" and not np.isfinite(array).all():
        raise ServingError(
            f"output {quote(name)}",
            found="NaN or infinite values",
            expected="finite numbers, which are all that JSON can carry",
            next_step="Ask for it with 'binary_data': true to see the values.",
        )
    return np.ascontiguousarray(array).reshape(-1)
