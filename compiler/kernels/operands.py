"""What fused operators take: everything about a tensor beside where it lies, and the checks of it.

Checks read shapes, dtypes and devices only, so they serve tensors, traced tensors and the ``Operand`` that stands for a
tensor when a launch is prepared.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, Protocol, overload

import torch
from torch import Tensor
from torch.nn import functional

from compiler.kernels.errors import ChoiceError, OperandError, ShapeError

ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}
# How float32 operands are multiplied; narrower ones are exact in the product and summed in float32 whatever it says.
PRECISIONS: Final = ("ieee", "tf32x3", "tf32")


class Described(Protocol):
    """A tensor, or what stands for one."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...


class Operand(NamedTuple):
    """Everything about a tensor that a launch depends on, beside where it lies."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def is_wide(self) -> bool:
        """Whether an element lies further from the first than 32 bits tell."""
        return sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)) >= 2**31


@overload
def describe(tensor: Tensor) -> Operand: ...
@overload
def describe(tensor: Tensor | None) -> Operand | None: ...
def describe(tensor: Tensor | None) -> Operand | None:
    """The operand that a tensor is; None is none."""
    if tensor is None:
        return None
    # Operand(…) runs a Python function for the same: a third of a microsecond in each of three or four operands.
    return tuple.__new__(Operand, (tensor.shape, tensor.stride(), tensor.dtype, tensor.device))


def check_linear_act(
    x: Described, weight: Described, bias: Described | None, activation: str, input_precision: str
) -> None:
    """Raise what ``linear_act`` says it raises."""
    _check_floating("linear_act", x)
    if len(weight.shape) != 2 or weight.shape[1] != x.shape[-1]:
        expected = f"(N, {x.shape[-1]}): x has {x.shape[-1]} columns"
        raise ShapeError(operator="linear_act", operand="weight", found=tuple(weight.shape), expected=expected)
    _check_same("linear_act", x, weight=weight)
    _check_vectors("linear_act", x, weight.shape[0], bias=bias)
    _check_choice("linear_act", "activation", activation, ACTIVATIONS)
    _check_choice("linear_act", "input_precision", input_precision, PRECISIONS)


def check_rows(
    operator: str,
    x: Described,
    *,
    gain: Described | None,
    bias: Described | None = None,
    residual: Described | None = None,
    activation: str = "none",
) -> None:
    """Raise what operators over rows say they raise."""
    _check_floating(operator, x)
    _check_columns(operator, x)
    _check_vectors(operator, x, x.shape[-1], gain=gain, bias=bias)
    if residual is not None:
        if tuple(residual.shape) != tuple(x.shape):
            raise ShapeError(
                operator=operator, operand="residual", found=tuple(residual.shape), expected=f"{tuple(x.shape)}, as x"
            )
        _check_same(operator, x, residual=residual)
    _check_choice(operator, "activation", activation, ACTIVATIONS)


def check_softmax(x: Described, mask: Described | None) -> None:
    """Raise what ``softmax`` says it raises."""
    _check_floating("softmax", x)
    _check_columns("softmax", x)
    if mask is None:
        return
    fits = len(mask.shape) <= len(x.shape) and all(
        size in (1, whole) for size, whole in zip(reversed(mask.shape), reversed(x.shape), strict=False)
    )
    if not fits:
        raise ShapeError(
            operator="softmax",
            operand="mask",
            found=tuple(mask.shape),
            expected=f"one that can be broadcast to {tuple(x.shape)}",
        )
    if mask.device != x.device or not (mask.dtype is torch.bool or mask.dtype.is_floating_point):
        raise OperandError(
            operator="softmax",
            operand="mask",
            quality="dtype and device",
            found=f"{mask.dtype} on {mask.device}",
            expected=f"bool or a floating dtype on {x.device}",
            next_step="Convert it before the call.",
        )


def _check_floating(operator: str, x: Described) -> None:
    if not x.dtype.is_floating_point:
        raise OperandError(
            operator=operator,
            operand="x",
            quality="dtype",
            found=x.dtype,
            expected="a floating dtype",
            next_step="Convert it before the call.",
        )
    if len(x.shape) == 0:
        raise ShapeError(operator=operator, operand="x", found=(), expected="at least one axis")


def _check_columns(operator: str, x: Described) -> None:
    if x.shape[-1] == 0:
        raise ShapeError(operator=operator, operand="x", found=tuple(x.shape), expected="at least one column")


def _check_vectors(operator: str, x: Described, length: int, **vectors: Described | None) -> None:
    for name, vector in vectors.items():
        if vector is None:
            continue
        if len(vector.shape) != 1 or vector.shape[0] != length:
            raise ShapeError(operator=operator, operand=name, found=tuple(vector.shape), expected=f"({length},)")
        _check_same(operator, x, **{name: vector})


def _check_same(operator: str, x: Described, **operands: Described) -> None:
    for name, operand in operands.items():
        if operand.dtype != x.dtype or operand.device != x.device:
            raise OperandError(
                operator=operator,
                operand=name,
                quality="dtype and device",
                found=f"{operand.dtype} on {operand.device}",
                expected=f"{x.dtype} on {x.device}, as x",
                next_step="Convert one of them before the call.",
            )


def _check_choice(operator: str, choice: str, found: str, known: Collection[str]) -> None:
    if found not in known:
        raise ChoiceError(operator=operator, choice=choice, found=found, known=known)
