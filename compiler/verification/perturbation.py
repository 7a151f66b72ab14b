"""A second checkpoint for the same model: every weight and stored buffer changed, and still sensible.

What is nowhere negative (a variance, a count) stays so and anything else moves freely; integers are reversed along
their own elements, which keeps indices in range. Ties stay ties. Non-persistent buffers stay: they belong to the
program.
"""

import copy
from typing import Final

import torch
from torch import Tensor, nn

_SEED: Final = 20261130


def perturb(model: nn.Module) -> nn.Module:
    """A copy of ``model`` with other weights."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(_SEED)
    done: set[int] = set()
    with torch.no_grad():
        for tensor in other.state_dict(keep_vars=True).values():
            if isinstance(tensor, Tensor) and tensor.data_ptr() not in done:
                done.add(tensor.data_ptr())
                tensor.copy_(_changed(tensor.detach(), generator))
    return other


def _changed(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.reshape(-1).flip(0).reshape(tensor.shape)
    values = tensor.double()
    stretch = torch.rand(values.shape, generator=generator, dtype=torch.float64) * 0.4 + 0.1
    scale = float(values.square().mean().sqrt()) or 0.1
    shift = torch.rand(values.shape, generator=generator, dtype=torch.float64) * 0.1 * scale
    if bool((values >= 0).all()):
        return values * (1 + stretch) + shift
    sign = torch.randint(0, 2, values.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return values * (1 + sign * stretch) + sign * shift
