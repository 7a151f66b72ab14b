"""The model in float64, throughout: the reference of every comparison.

``model.double()`` is not enough: a forward pass that says ``mask.float()`` mixes float32 into float64, and attention on
the CPU then answers wrongly without a word (torch 2.13: 0.27 off on values of 2.5), which would make every bound
useless. So explicit requests for a narrower floating type are answered in float64. Constants that the code creates keep
the rounding they have in the model.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_NARROW: Final = (torch.float32, torch.float16, torch.bfloat16)

Reference = Callable[[Sequence[Tensor]], list[Tensor]]


def reference_of(model: nn.Module) -> Reference:
    """A function from inputs to the outputs of a float64 copy of ``model``."""
    exact = copy.deepcopy(model).double()

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        with _Widening():  # type: ignore[no-untyped-call]
            return outputs_of(exact, [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs])

    return run


def outputs_of(model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that the model returns, flat and in order."""
    with torch.no_grad():
        return [leaf for leaf in pytree.tree_leaves(model(*inputs)) if isinstance(leaf, Tensor)]


class _Widening(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives float64 where an operator is asked for a narrower floating type."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        positional, named = pytree.tree_map(_widened, (args, kwargs or {}))
        return func(*positional, **named)


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
