"""What a variant of a family is: a model, an input, and what has to become of it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compiler.passes import Reason

BATCH = 8  # the largest; 1, 2 and 7 are tried, too


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One variant. The first axis of every input is the batch, and dynamic.

    ``fused`` is how many changes each pass makes, ``refused`` what passes refuse, in order; passes that
    only tidy up are not counted. ``factor`` bounds the error by eager execution's: 2, or 4 where sums change order.
    ``soaked`` are left to the soak: other variants bring any two of their qualities together.
    """

    name: str
    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    fused: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[tuple[str, Reason], ...] = ()
    dtype: torch.dtype = torch.float32
    memory_format: torch.memory_format = torch.contiguous_format
    factor: float = 2.0
    wild: bool = True
    soaked: bool = False

    def model(self) -> nn.Module:
        """The model in evaluation mode, with weights of its own."""
        torch.manual_seed(0)
        model = self.build()
        if self.wild:
            make_wild(model)
        return model.eval().to(self.dtype).to(memory_format=self.memory_format)

    def inputs(self, rows: int) -> tuple[Tensor, ...]:
        """Inputs of ``rows`` rows, contiguous as a program wants them."""
        generator = torch.Generator().manual_seed(rows)
        return tuple(torch.randn(rows, *shape, generator=generator).to(self.dtype) for shape in self.shapes)


def make_wild(model: nn.Module) -> None:
    """Statistics as training may leave them: variances from 1e-3 to 1e3, gains negative and zero."""
    for module in model.modules():
        if not isinstance(module, _BatchNorm):
            continue
        count = module.num_features
        if module.running_var is not None and module.running_mean is not None:
            module.running_var.copy_(10.0 ** (torch.rand(count) * 6 - 3))
            module.running_mean.copy_(torch.randn(count) * module.running_var.sqrt())
        if module.affine:
            with torch.no_grad():
                module.weight.normal_()
                module.bias.normal_()
                module.weight[0] = 0.0
                module.weight[-1] = -1.5


def combinations(*axes: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Every choice of one value from each axis, and whether it is for the soak: every second one is."""
    for places in product(*(list(enumerate(axis)) for axis in axes)):
        yield *(value for _, value in places), sum(place for place, _ in places) % 2 == 1


class Function(nn.Module):
    """A model whose forward pass is a function of its input and of named modules and tensors.

    One input, by name: what traces a signature (``torch.fx``) can trace it.
    """

    def __init__(self, forward: Callable[..., object], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            if isinstance(part, nn.Parameter | nn.Module):
                setattr(self, name, part)
            elif isinstance(part, Tensor):
                self.register_buffer(name, part)

    def forward(self, x: Tensor) -> object:
        return self._forward(self, x)


class OfSeveral(Function):
    """The same, of as many inputs as the function takes."""

    def forward(self, *inputs: Tensor) -> object:
        return self._forward(self, *inputs)
