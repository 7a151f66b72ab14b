"""Formulas: how one constant of a program is computed from checkpoint tensors.

A formula is a short list of steps in post-order; each step names earlier ones as operands and the last is the result,
so a cycle cannot be written down. Leaves are checkpoint tensors and the program's own literals. An identity formula
copies bits; any other is computed in float64 and rounded once, to the constant's dtype.

Formulas are built by composition and know nothing of models or files::

    scale = Formula.tensor("bn.weight") * (Formula.tensor("bn.running_var") + 1e-5).rsqrt()
    folded = Formula.tensor("conv.weight") * scale.reshape((8, 1, 1, 1))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

MAX_STEPS: Final = 64

# Operation → how many operands it takes. ``offset`` adds a number of its own.
OPERANDS: Final = {
    "tensor": 0,
    "literal": 0,
    "add": 2,
    "subtract": 2,
    "multiply": 2,
    "rsqrt": 1,
    "negate": 1,
    "offset": 1,
    "reshape": 1,
}
_FUNCTIONS: Final[dict[str, Callable[..., Tensor]]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "rsqrt": torch.rsqrt,
    "negate": torch.neg,
}
_INFIX: Final = {"add": "+", "subtract": "-", "multiply": "*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation. ``name`` belongs to leaves, ``value`` to ``offset``, ``shape`` to ``reshape``."""

    operation: str
    operands: tuple[int, ...] = ()
    name: str = ""
    value: float = 0.0
    shape: tuple[int, ...] = ()


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

    @property
    def is_identity(self) -> bool:
        """Whether the constant is a leaf, bit for bit."""
        return len(self.steps) == 1

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
            return self._joined(other, "add")
        return self._followed(Step(operation="offset", value=float(other)))

    def __sub__(self, other: "Formula") -> "Formula":
        return self._joined(other, "subtract")

    def __mul__(self, other: "Formula") -> "Formula":
        return self._joined(other, "multiply")

    def __neg__(self) -> "Formula":
        return self._followed(Step(operation="negate"))

    def rsqrt(self) -> "Formula":
        """1 / √x, element by element."""
        return self._followed(Step(operation="rsqrt"))

    def reshape(self, shape: tuple[int, ...]) -> "Formula":
        """The same elements, in row-major order, under another shape."""
        return self._followed(Step(operation="reshape", shape=shape))

    def _followed(self, step: Step) -> "Formula":
        return Formula(steps=(*self.steps, replace(step, operands=(len(self.steps) - 1,))))

    def _joined(self, other: "Formula", operation: str) -> "Formula":
        shift = len(self.steps)
        moved = (replace(step, operands=tuple(operand + shift for operand in step.operands)) for step in other.steps)
        last = Step(operation=operation, operands=(shift - 1, shift + len(other.steps) - 1))
        return Formula(steps=(*self.steps, *moved, last))

    def __str__(self) -> str:
        """Infix, fully parenthesised: ``conv.weight * reshape(…, [8, 1, 1, 1])``."""
        texts: list[str] = []
        for step in self.steps:
            texts.append(_render(step, texts))
        return _bare(texts[-1])


def compute(formula: Formula, leaves: Mapping[tuple[str, str], Tensor]) -> Tensor:
    """Evaluate in float64.

    Args:
        formula: With every step's operands before it.
        leaves: (``"tensor"`` or ``"literal"``, name) → tensor of any dtype; on the meta device only shapes are found.

    Returns:
        A float64 tensor that may share memory with nothing of the caller's except for a float64 leaf.
    """
    values: list[Tensor] = []
    for step in formula.steps:
        operands = [values[index] for index in step.operands]
        values.append(_apply(step, operands, leaves))
    return values[-1]


def _apply(step: Step, operands: list[Tensor], leaves: Mapping[tuple[str, str], Tensor]) -> Tensor:
    if step.operation in ("tensor", "literal"):
        return leaves[step.operation, step.name].to(torch.float64)
    if step.operation == "offset":
        return operands[0] + step.value
    if step.operation == "reshape":
        return operands[0].reshape(step.shape)
    return _FUNCTIONS[step.operation](*operands)


def _render(step: Step, texts: list[str]) -> str:
    operands = [texts[index] for index in step.operands]
    if step.operation == "tensor":
        return step.name
    if step.operation == "literal":
        return f"literal[{step.name}]"
    if step.operation in _INFIX:
        return f"({operands[0]} {_INFIX[step.operation]} {operands[1]})"
    if step.operation == "offset":
        return f"({operands[0]} + {step.value!r})"
    if step.operation == "reshape":
        return f"reshape({_bare(operands[0])}, {list(step.shape)})"
    return f"{step.operation}({_bare(operands[0])})"


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith("(") else text
