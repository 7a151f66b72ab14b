"""Whether two states are the same, bit for bit, kind for kind, layout for layout."""

import struct
from typing import Any

import numpy as np
import torch

from ckpt.format.dtypes import bits
from ckpt.format.records import normal_strides


def same(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return _same_tensor(first, second)
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
    if isinstance(first, dict):
        pairs = zip(first.items(), second.items(), strict=True)
        return len(first) == len(second) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, float):
        return struct.pack("d", first) == struct.pack("d", second)
    if isinstance(first, complex):
        return same(first.real, second.real) and same(first.imag, second.imag)
    return bool(first == second)


def _same_tensor(first: torch.Tensor, second: torch.Tensor) -> bool:
    layout = first.dtype == second.dtype and first.shape == second.shape
    strides = normal_strides(first.shape, first.stride()) == normal_strides(second.shape, second.stride())
    flags = first.requires_grad == second.requires_grad
    return layout and strides and flags and torch.equal(_bits(first), _bits(second))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = bits(tensor.detach().resolve_conj().resolve_neg())
    dense = torch.empty(plain.shape, dtype=plain.dtype)  # contiguous() may keep the stride of a lone element
    return dense.copy_(plain).reshape(-1).view(torch.uint8)
