"""The model in float64, throughout: the reference of every comparison.

``model.double()`` is not enough: a forward pass that says ``mask.float()`` mixes float32 into float64, and attention on
the CPU then answers wrongly without a word (torch 2.13: 0.27 off on values of 2.5), which would make every bound
useless. So explicit requests for a narrower floating type are answered in float64, and what the code makes in a
narrower type by default (``torch.ones``, a list of numbers) is widened, with the rounding that it has in the model.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from compiler.errors import UnverifiableError

_NARROW: Final = (torch.float32, torch.float16, torch.bfloat16)

Reference = Callable[[Sequence[Tensor]], list[Tensor]]


def reference_of(model: nn.Module) -> Reference:
    """A function from inputs to the outputs of a float64 copy of ``model``.

    It raises ``UnverifiableError`` for a model that does not run so.
    """
    exact = copy.deepcopy(model).double()

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        try:
            with _Widening():  # type: ignore[no-untyped-call]
                return outputs_of(exact, [_wide(tensor) for tensor in inputs])
        except RuntimeError as error:
            raise UnverifiableError(model=type(model).__name__, reason=str(error)) from error

    return run


def outputs_of(model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that the model returns, flat and in order."""
    with torch.no_grad():
        return [leaf for leaf in pytree.tree_leaves(model(*inputs)) if isinstance(leaf, Tensor)]


class _Widening(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives float64 where an operator is asked for a narrower floating type, and where it makes or reads one.

    What is read by an operator that writes to it or gives a view of it stays as it is.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(argument.alias_info for argument in func._schema.arguments):
            return func(*args, **kwargs or {})
        positional, named = pytree.tree_map(_wide, (args, kwargs or {}))
        return pytree.tree_map(_wide, func(*positional, **named))


def _wide(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _NARROW else value
    return value.double() if isinstance(value, Tensor) and value.dtype in _NARROW else value
