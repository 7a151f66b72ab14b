"""Calls of every fused operator at any size, and how far a result may be from the reference in float64."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

import pytest
import torch
import triton
from torch import Tensor

from compiler.kernels import OPERATIONS

INTERPRETED: Final = bool(triton.knobs.runtime.interpret)
DEVICE: Final = "cpu" if INTERPRETED else "cuda"
# The same tests run in the interpreter, and on a GPU where TRITON_INTERPRET is 0.
MARKS: Final = (
    []
    if INTERPRETED
    else [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")]
)

Call = tuple[tuple[Any, ...], dict[str, Any]]

ACTIVATIONS: Final = ("none", "relu", "gelu", "gelu_tanh", "silu")
# ‖out − ref‖ ÷ ‖ref‖: what one value is rounded by (the interpreter cuts bfloat16 off); float32 also sums products up.
BOUNDS: Final = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
EPS: Final = 1e-2  # large: a kernel that leaves it out is found


class Draw:
    """Random operands of one dtype on one device."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32, device: str = DEVICE) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.dtype, self.device = dtype, device

    def __call__(self, *shape: int, mean: float = 0.0) -> Tensor:
        values = torch.randn(shape, generator=self._generator) + mean
        return values.to(self.device, self.dtype)

    def flags(self, *shape: int) -> Tensor:
        """Bools of which about two thirds are True."""
        return (torch.rand(shape, generator=self._generator) < 0.67).to(self.device)


def linear_act(draw: Draw, rows: int, columns: int, depth: int, *, activation: str = "gelu", **words: str) -> Call:
    return (draw(rows, depth), draw(columns, depth) / depth**0.5, draw(columns), activation), words


def layernorm_act(draw: Draw, rows: int, columns: int, _: int = 0, *, activation: str = "gelu") -> Call:
    return (draw(rows, columns, mean=0.5), draw(columns), draw(columns), EPS, activation), {}


def add_layernorm(draw: Draw, rows: int, columns: int, _: int = 0) -> Call:
    return (draw(rows, columns, mean=0.5), draw(rows, columns), draw(columns), draw(columns), EPS), {}


def rmsnorm(draw: Draw, rows: int, columns: int, _: int = 0) -> Call:
    return (draw(rows, columns), draw(columns), EPS), {}


def softmax(draw: Draw, rows: int, columns: int, _: int = 0) -> Call:
    mask = draw.flags(rows, columns)
    mask[:, 0] = True
    return (draw(rows, columns), mask), {"scale": 0.7}


CALLS: Final[dict[str, Callable[..., Call]]] = {
    "linear_act": linear_act,
    "layernorm_act": layernorm_act,
    "add_layernorm": add_layernorm,
    "add_layernorm.with_sum": add_layernorm,
    "rmsnorm": rmsnorm,
    "softmax": softmax,
}


def kernel(operator: str) -> Callable[..., Any]:
    """The Triton kernel of an operator, whatever device its operands are on."""
    module, _, name = OPERATIONS[operator].kernels["cuda"].partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def expected(operator: str, call: Call) -> tuple[Tensor, ...]:
    """What the reference gives in float64 on the CPU."""
    positional, named = call
    wide = [value.double().cpu() if _is_floating(value) else _on_cpu(value) for value in positional]
    return _several(OPERATIONS[operator].reference(*wide, **named))


def check(operator: str, call: Call, *, bound: float | None = None) -> None:
    """The kernel's results are as near the reference as the dtype lets them be, and written throughout."""
    positional, named = call
    for value in positional:
        if isinstance(value, Tensor) and value.is_cuda:
            torch.full_like(value, torch.nan if value.is_floating_point() else 1)  # what the result may lie in next
    for out, exact in zip(_several(kernel(operator)(*positional, **named)), expected(operator, call), strict=True):
        assert out.shape == exact.shape
        assert out.is_contiguous()
        assert out.dtype == positional[0].dtype
        assert error(out, exact) <= (bound or BOUNDS[out.dtype]), f"{operator} {tuple(positional[0].shape)}"


def error(out: Tensor, exact: Tensor) -> float:
    """‖out − exact‖ / ‖exact‖; NaN where either has one that the other has not; 0 for nothing at all."""
    if exact.numel() == 0:
        return 0.0
    difference = out.double().cpu() - exact
    return float(difference.norm() / exact.norm().clamp_min(1e-30))


def _several(result: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value
