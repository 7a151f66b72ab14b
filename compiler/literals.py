"""Literals as tensors and back: elements in row-major order, as this machine stores them (little-endian)."""

import torch
from torch import Tensor

from compiler import dtypes
from compiler.definition import Literal


def literal_of(name: str, tensor: Tensor) -> Literal:
    """The literal of this name that holds a copy of a CPU tensor's elements."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return Literal(name=name, dtype=dtypes.NAME[tensor.dtype], shape=tuple(tensor.shape), data=raw)


def tensor_of(literal: Literal) -> Tensor:
    """A contiguous CPU tensor with memory of its own."""
    if not literal.data:
        return torch.empty(literal.shape, dtype=dtypes.BY_NAME[literal.dtype])
    return torch.frombuffer(bytearray(literal.data), dtype=dtypes.BY_NAME[literal.dtype]).reshape(literal.shape)
