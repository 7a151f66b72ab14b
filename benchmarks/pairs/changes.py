"""How the tensors of two checkpoints differ: their bits, element by element."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import ckpt

UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
Bits = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A tensor of the target beside the base's of that name: flat bits, as far as both go.

    Attributes:
        dtype: Of the target.
        base, target: Equally long; empty for a tensor of which the base has none of that dtype.
        new_elements: How many the target has beyond.
    """

    dtype: torch.dtype
    base: Bits
    target: Bits
    new_elements: int


def changes(base: Path, target: Path, *, verify: Literal["lazy", "none"] = "lazy") -> Iterator[Change]:
    """Tensor by tensor in the target's order; ``verify`` as of ``ckpt.open``."""
    with ckpt.open(base, verify=verify) as old, ckpt.open(target, verify=verify) as new:
        for name in new:
            now = new[name]
            before = old[name] if name in old else now[:0]
            shared = min(before.numel(), now.numel()) if before.dtype == now.dtype else 0
            yield Change(
                dtype=now.dtype,
                base=bits(before)[:shared],
                target=bits(now)[:shared],
                new_elements=now.numel() - shared,
            )


def changed_share(base: Path, target: Path) -> float:
    """Of the target's elements, how many differ from the base's at their place, or are new: 0..1."""
    changed = elements = 0
    for change in changes(base, target):
        changed += int(np.count_nonzero(change.base != change.target)) + change.new_elements
        elements += len(change.target) + change.new_elements
    return changed / max(1, elements)


def bits(tensor: Tensor) -> Bits:
    """The elements of a tensor as unsigned integers, flat, in memory that both share where it is contiguous."""
    flat = tensor.detach().reshape(-1)
    array: Bits = flat.view(UNSIGNED[flat.element_size()]).numpy()
    return array
