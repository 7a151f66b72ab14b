"""Inputs that provoke mistakes, and the sizes to try them at.

Floating-point inputs get values that an example would not have; others (token ids, masks) only values that the example
has, since anything else may be out of range.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from compiler.specs import Dim

_LARGE: Final = 1e3


def _random(example: Tensor, generator: torch.Generator) -> Tensor:
    if not example.is_floating_point():
        order = torch.randint(0, max(example.numel(), 1), example.shape, generator=generator)
        return example.reshape(-1)[order]
    noise = torch.randn(example.shape, generator=generator, dtype=torch.float64)
    return (noise * _spread(example)).to(example.dtype)


def _large(example: Tensor, generator: torch.Generator) -> Tensor:
    if not example.is_floating_point():
        return example.amax().expand(example.shape).contiguous()
    return _random(example, generator) * _LARGE


def _zeros(example: Tensor, generator: torch.Generator) -> Tensor:
    if not example.is_floating_point():
        return example.amin().expand(example.shape).contiguous()
    return torch.zeros_like(example)


def _equal(example: Tensor, generator: torch.Generator) -> Tensor:
    if not example.is_floating_point():
        return example.reshape(-1)[:1].expand(example.numel()).reshape(example.shape).contiguous()
    return torch.full_like(example, _spread(example))


def _spread(example: Tensor) -> float:
    """The example's own magnitude, so that "random" means plausible."""
    return float(example.double().square().mean().sqrt()) or 1.0


KINDS: Final[Mapping[str, Callable[[Tensor, torch.Generator], Tensor]]] = {
    "example": lambda example, generator: example,
    "random": _random,
    "large": _large,
    "zeros": _zeros,
    "equal": _equal,
}


def sizes_to_try(dims: Sequence[Dim]) -> list[dict[str, int]]:
    """Sizes of every dimension: 1, 2, 7, both ends, each with the other dimensions at theirs, without repeats."""
    columns = [_sizes_of(dim) for dim in dims]
    longest = max((len(column) for column in columns), default=1)
    tried: list[dict[str, int]] = []
    for shift in range(len(dims) or 1):
        for row in range(longest):
            sizes = {
                dim.name: column[(row + shift * position) % len(column)]
                for position, (dim, column) in enumerate(zip(dims, columns, strict=True))
            }
            if sizes not in tried:
                tried.append(sizes)
    return tried


def _sizes_of(dim: Dim) -> list[int]:
    return sorted({dim.min, dim.max} | {size for size in (1, 2, 7) if dim.min <= size <= dim.max})
