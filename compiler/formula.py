"""Formulas: how one constant of a program is computed from checkpoint tensors.

A formula is a short list of steps in post-order; each step names earlier ones as operands and the last is the result,
so a cycle cannot be written down. Leaves are checkpoint tensors and the program's own literals. A formula that only
moves elements (reshape, permute, narrow, cat) copies bits; any other is computed in float64 and rounded once, to the
constant's dtype.

Formulas are built by composition and know nothing of models or files::

    scale = Formula.tensor("bn.weight") * (Formula.tensor("bn.running_var") + 1e-5).rsqrt()
    folded = Formula.tensor("conv.weight") * scale.reshape((8, 1, 1, 1))
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

MAX_STEPS: Final = 64

# Operation → how many operands it takes; None: two or more.
OPERANDS: Final[Mapping[str, int | None]] = {
    "tensor": 0,
    "literal": 0,
    "add": 2,
    "subtract": 2,
    "multiply": 2,
    "divide": 2,
    "negate": 1,
    "rsqrt": 1,
    "sqrt": 1,
    "exp": 1,
    "offset": 1,
    "scale": 1,
    "sum": 1,
    "reshape": 1,
    "permute": 1,
    "narrow": 1,
    "cat": None,
}
# Operation → the fields of a step that belong to it; all others stay empty.
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "tensor": ("name",),
    "literal": ("name",),
    "offset": ("value",),
    "scale": ("value",),
    "sum": ("axes",),
    "reshape": ("shape",),
    "permute": ("axes",),
    "narrow": ("axes", "start", "length"),
    "cat": ("axes",),
}
LEAVES: Final = frozenset({"tensor", "literal"})
_MOVES: Final = frozenset({"reshape", "permute", "narrow", "cat"})
_FUNCTIONS: Final[Mapping[str, Callable[..., Tensor]]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "negate": torch.neg,
    "rsqrt": torch.rsqrt,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
}
_INFIX: Final = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation. Which fields beside the operands it has is said by ``FIELDS``.

    ``axes`` are those that ``sum`` removes, the order that ``permute`` gives, the one of ``narrow`` and ``cat``.
    """

    operation: str
    operands: tuple[int, ...] = ()
    name: str = ""
    value: float = 0.0
    shape: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    start: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """Steps in post-order; the last one is the result."""

    steps: tuple[Step, ...]

    @staticmethod
    def tensor(name: str) -> "Formula":
        """The checkpoint tensor of this name."""
        return Formula(steps=(Step(operation="tensor", name=name),))

    @staticmethod
    def literal(name: str) -> "Formula":
        """The program's own literal of this name."""
        return Formula(steps=(Step(operation="literal", name=name),))

    @staticmethod
    def cat(parts: Sequence["Formula"], axis: int) -> "Formula":
        """Two or more parts, one after the other along ``axis``."""
        return _combined(parts, Step(operation="cat", axes=(axis,)))

    @property
    def is_identity(self) -> bool:
        """Whether the constant is a leaf, bit for bit."""
        return len(self.steps) == 1

    @property
    def moves_only(self) -> bool:
        """Whether every element is copied from a leaf, bit for bit."""
        return all(step.operation in LEAVES | _MOVES for step in self.steps)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Checkpoint tensors read, sorted."""
        return tuple(sorted({step.name for step in self.steps if step.operation == "tensor"}))

    @property
    def literals(self) -> tuple[str, ...]:
        """Literals read, sorted."""
        return tuple(sorted({step.name for step in self.steps if step.operation == "literal"}))

    def __add__(self, other: "Formula | float") -> "Formula":
        if isinstance(other, Formula):
            return _combined((self, other), Step(operation="add"))
        return _combined((self,), Step(operation="offset", value=float(other)))

    def __sub__(self, other: "Formula") -> "Formula":
        return _combined((self, other), Step(operation="subtract"))

    def __mul__(self, other: "Formula | float") -> "Formula":
        if isinstance(other, Formula):
            return _combined((self, other), Step(operation="multiply"))
        return _combined((self,), Step(operation="scale", value=float(other)))

    def __truediv__(self, other: "Formula") -> "Formula":
        return _combined((self, other), Step(operation="divide"))

    def __neg__(self) -> "Formula":
        return _combined((self,), Step(operation="negate"))

    def rsqrt(self) -> "Formula":
        """1 / √x, element by element."""
        return _combined((self,), Step(operation="rsqrt"))

    def sqrt(self) -> "Formula":
        """√x, element by element."""
        return _combined((self,), Step(operation="sqrt"))

    def exp(self) -> "Formula":
        """eˣ, element by element."""
        return _combined((self,), Step(operation="exp"))

    def sum(self, axes: tuple[int, ...]) -> "Formula":
        """The sum over ``axes`` (one or more, counted from 0), which are gone afterwards."""
        return _combined((self,), Step(operation="sum", axes=axes))

    def reshape(self, shape: tuple[int, ...]) -> "Formula":
        """The same elements, in row-major order, under another shape."""
        return _combined((self,), Step(operation="reshape", shape=shape))

    def permute(self, axes: tuple[int, ...]) -> "Formula":
        """The axes in another order: axis k of the result is axis ``axes[k]`` of the operand."""
        return _combined((self,), Step(operation="permute", axes=axes))

    def narrow(self, axis: int, start: int, length: int) -> "Formula":
        """``length`` places of ``axis`` from ``start`` on."""
        return _combined((self,), Step(operation="narrow", axes=(axis,), start=start, length=length))

    def __str__(self) -> str:
        """Infix, fully parenthesised: ``conv.weight * reshape(…, [8, 1, 1, 1])``."""
        texts: list[str] = []
        for step in self.steps:
            texts.append(_render(step, texts))
        return _bare(texts[-1])


def compute(formula: Formula, leaves: Mapping[tuple[str, str], Tensor]) -> Tensor:
    """The constant, before it is rounded to its dtype; see ``compute_steps``."""
    return compute_steps(formula, leaves)[-1]


def compute_steps(formula: Formula, leaves: Mapping[tuple[str, str], Tensor]) -> list[Tensor]:
    """Evaluate every step, the result last.

    Args:
        formula: With every step's operands before it.
        leaves: (``"tensor"`` or ``"literal"``, name) → tensor of any dtype; on the meta device only shapes are found.

    Returns:
        Float64 tensors; of a formula that only moves elements, tensors of its leaves' dtype. They may share memory with
        leaves.
    """
    values: list[Tensor] = []
    for step in formula.steps:
        if step.operation in LEAVES:
            leaf = leaves[step.operation, step.name]
            values.append(leaf if formula.moves_only else leaf.to(torch.float64))
        else:
            values.append(apply_step(step, [values[index] for index in step.operands]))
    return values


def apply_step(step: Step, operands: Sequence[Tensor]) -> Tensor:
    """The value of a step that is no leaf."""
    match step.operation:
        case "offset":
            return operands[0] + step.value
        case "scale":
            return operands[0] * step.value
        case "sum":
            return operands[0].sum(step.axes)
        case "reshape":
            return operands[0].reshape(step.shape)
        case "permute":
            return operands[0].permute(step.axes)
        case "narrow":
            return operands[0].narrow(step.axes[0], step.start, step.length)
        case "cat":
            return torch.cat(list(operands), step.axes[0])
        case operation:
            return _FUNCTIONS[operation](*operands)


def _combined(parts: Sequence[Formula], last: Step) -> Formula:
    """The steps of all parts, and one that takes their results."""
    steps: list[Step] = []
    results: list[int] = []
    for part in parts:
        shift = len(steps)
        steps += (replace(step, operands=tuple(index + shift for index in step.operands)) for step in part.steps)
        results.append(len(steps) - 1)
    return Formula(steps=(*steps, replace(last, operands=tuple(results))))


def _render(step: Step, texts: list[str]) -> str:
    operands = [texts[index] for index in step.operands]
    first = _bare(operands[0]) if operands else ""
    match step.operation:
        case "tensor":
            return step.name
        case "literal":
            return f"literal[{step.name}]"
        case "offset":
            return f"({operands[0]} + {step.value!r})"
        case "scale":
            return f"({operands[0]} * {step.value!r})"
        case "reshape":
            return f"reshape({first}, {list(step.shape)})"
        case "sum" | "permute":
            return f"{step.operation}({first}, {list(step.axes)})"
        case "narrow":
            return f"narrow({first}, {step.axes[0]}, {step.start}, {step.length})"
        case "cat":
            return f"cat([{', '.join(map(_bare, operands))}], {step.axes[0]})"
        case operation if operation in _INFIX:
            return f"({operands[0]} {_INFIX[operation]} {operands[1]})"
        case operation:
            return f"{operation}({first})"


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith("(") else text
