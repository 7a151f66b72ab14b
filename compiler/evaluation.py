"""Evaluating a formula in one pass over its weights.

Step by step, a folded weight would be written three times in float64 before it is rounded once. So a result is made
block after block of rows (axis 0), each small enough to stay in the cache, straight into the constant's memory. What no
block can be cut from (a scale that is broadcast, rows under another shape) is computed whole, once.

Only operations that work element by element are cut, so the blocks hold the bits of ``formula.compute``.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from compiler.formula import LEAVES, Formula, Step, apply_step, compute

# In float64 a block is 256 KiB: a few fit the second level cache of a core. It is what torch does in one thread at most
# (its grain): threads would wait for one another longer than operators as short as these take.
BLOCK_ELEMENTS: Final = 1 << 15

_ELEMENT_BY_ELEMENT: Final = frozenset(
    {"add", "subtract", "multiply", "divide", "negate", "rsqrt", "sqrt", "exp", "offset", "scale"}
)

Leaves = Mapping[tuple[str, str], Tensor]
Shape = tuple[int, ...] | None


def evaluate_into(out: Tensor, formula: Formula, leaves: Leaves) -> None:
    """Write a formula's result.

    Args:
        out: The constant's memory, of the shape that the formula yields; any floating dtype, any strides.
        formula: With every step's operands before it.
        leaves: (``"tensor"`` or ``"literal"``, name) → tensor.
    """
    steps = formula.steps
    cut = _cut(steps, _shapes(steps, leaves)) if out.numel() > BLOCK_ELEMENTS else []
    if not cut:
        out.copy_(compute(formula, leaves))
        return
    whole = _whole(steps, cut, leaves)
    size = max(1, BLOCK_ELEMENTS * out.shape[0] // out.numel())
    for start in range(0, out.shape[0], size):
        _write_rows(out, steps, cut, whole, leaves, start, start + size)


def _write_rows(
    out: Tensor,
    steps: Sequence[Step],
    cut: Sequence[int],
    whole: Mapping[int, Tensor],
    leaves: Leaves,
    start: int,
    stop: int,
) -> None:
    rows: dict[int, Tensor] = {}
    for index in cut:
        step = steps[index]
        if step.operation in LEAVES:
            rows[index] = leaves[step.operation, step.name][start:stop].to(torch.float64)
        else:
            operands = [
                rows[operand] if operand in rows else _part(whole[operand], out.shape, start, stop)
                for operand in step.operands
            ]
            rows[index] = apply_step(step, operands)
    out[start:stop].copy_(rows[cut[-1]])


def _part(value: Tensor, shape: torch.Size, start: int, stop: int) -> Tensor:
    """What some rows of ``shape`` see of a value that is broadcast to it."""
    return value[start:stop] if value.dim() == len(shape) and value.shape[0] == shape[0] else value


def _shapes(steps: Sequence[Step], leaves: Leaves) -> list[Shape]:
    """The shape of each step's value; None where only computing it would tell."""
    shapes: list[Shape] = []
    for step in steps:
        operands = [shapes[operand] for operand in step.operands]
        if step.operation in LEAVES:
            shapes.append(tuple(leaves[step.operation, step.name].shape))
        elif step.operation in _ELEMENT_BY_ELEMENT and None not in operands:
            shapes.append(tuple(torch.broadcast_shapes(*operands)))  # type: ignore[no-untyped-call]
        else:
            shapes.append(step.shape if step.operation == "reshape" else None)
    return shapes


def _cut(steps: Sequence[Step], shapes: Sequence[Shape]) -> list[int]:
    """The steps of which every block needs its rows, in order; none when the result cannot be cut."""
    last = len(steps) - 1
    shape = shapes[last]
    if not shape or steps[last].operation not in _ELEMENT_BY_ELEMENT:
        return []
    cut = {last}
    for index in range(last, -1, -1):
        for operand in steps[index].operands if index in cut else ():
            own = shapes[operand]
            has_rows = own is not None and len(own) == len(shape) and own[0] == shape[0]
            if has_rows and steps[operand].operation in _ELEMENT_BY_ELEMENT | LEAVES:
                cut.add(operand)
    return sorted(cut)


def _whole(steps: Sequence[Step], cut: Sequence[int], leaves: Leaves) -> dict[int, Tensor]:
    """The values that blocks broadcast, and those that these are made of."""
    needed = {operand for index in cut for operand in steps[index].operands} - set(cut)
    for index in range(len(steps) - 1, -1, -1):
        if index in needed:
            needed.update(steps[index].operands)
    values: dict[int, Tensor] = {}
    for index in sorted(needed):
        step = steps[index]
        if step.operation in LEAVES:
            values[index] = leaves[step.operation, step.name].to(torch.float64)
        else:
            values[index] = apply_step(step, [values[operand] for operand in step.operands])
    return values
