"""Dynamic dimensions: what a caller declares per input and axis, and the sizes that a trace uses for them.

A trace specialises silently on a size of 1 and at the ends of a range, so examples are resized to other sizes first.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from compiler.errors import CaptureError, DynamicShapeError
from compiler.specs import Dim

Dynamic = Mapping[str, Mapping[int, Dim]]

_TRACE_SIZES: Final = (3, 5, 7, 11, 13, 17, 19, 23)


def input_names(model: nn.Module, example_inputs: Sequence[Tensor]) -> tuple[str, ...]:
    """The names that ``forward`` gives its arguments, one per example input."""
    for position, value in enumerate(example_inputs):
        if not isinstance(value, Tensor):
            raise CaptureError(
                f"{type(model).__name__}: example input {position} is a {type(value).__name__}, expected a tensor. "
                "Wrap the model in a module that takes tensors only.",
                model=type(model).__name__,
            )
    bound = inspect.signature(model.forward).bind(*example_inputs)
    names: list[str] = []
    for name, value in bound.arguments.items():
        names += [f"{name}_{index}" for index in range(len(value))] if isinstance(value, tuple) else [name]
    return tuple(names)


def trace_sizes(dims: Sequence[Dim]) -> dict[str, int]:
    """A size for each dimension that no trace specialises on: inside its range, not 1, distinct where possible."""
    sizes: dict[str, int] = {}
    for dim in dims:
        free = [size for size in _TRACE_SIZES if dim.min < size <= dim.max and size not in sizes.values()]
        sizes[dim.name] = free[0] if free else dim.max
    return sizes


def resize(tensor: Tensor, axes: Mapping[int, Dim], sizes: Mapping[str, int]) -> Tensor:
    """The tensor with its dynamic axes at ``sizes``, filled by repeating its own rows."""
    for axis, dim in axes.items():
        rows = torch.arange(sizes[dim.name]) % tensor.shape[axis]
        tensor = tensor.index_select(axis, rows)
    return tensor.contiguous()


def dims_by_axis(names: Sequence[str], inputs: Sequence[Tensor], dynamic: Dynamic) -> list[dict[int, Dim]]:
    for unknown in dynamic.keys() - set(names):
        raise DynamicShapeError(f"dynamic= names input {unknown!r}, expected one of {', '.join(names)}.")
    placed = [dict(dynamic.get(name, {})) for name in names]
    for name, tensor, axes in zip(names, inputs, placed, strict=True):
        for axis in axes:
            if not 0 <= axis < tensor.dim():
                raise DynamicShapeError(
                    f"dynamic= names axis {axis} of input {name!r}, which has {tensor.dim()} axes; "
                    "count axes from 0 and not from the end."
                )
            if tensor.shape[axis] == 0:
                raise DynamicShapeError(f"axis {axis} of example input {name!r} is empty; give at least one row.")
    return placed


def distinct_dims(placed: Sequence[Mapping[int, Dim]]) -> tuple[Dim, ...]:
    found: dict[str, Dim] = {}
    for axes in placed:
        for dim in axes.values():
            if found.setdefault(dim.name, dim) != dim:
                raise DynamicShapeError(
                    f"dimension {dim.name!r} is declared as {found[dim.name]} and as {dim}; one name has one range."
                )
    return tuple(found.values())


def as_signature(model: nn.Module, shapes: list[dict[int, Any]]) -> dict[str, Any] | None:
    """``shapes`` as torch.export wants them: by argument, with starred arguments as one tuple."""
    left = list(shapes)
    result: dict[str, Any] = {}
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            result[parameter.name] = tuple(left)
            left = []
        elif left:
            result[parameter.name] = left.pop(0)
    return result or None
