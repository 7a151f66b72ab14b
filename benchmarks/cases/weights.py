"""Random states to save, load and patch: the same for the same arguments."""

import torch
from torch import Tensor

TENSOR_BYTES = 8 << 20
HEAD_SHARE = 64  # the head is 1/64 of the weights


def mixed_state(size_bytes: int, *, tensor_bytes: int = TENSOR_BYTES) -> dict[str, Tensor]:
    """Tensors of random bits in turn float32 and bfloat16, and one rest; nothing here depends on values.

    Args:
        size_bytes: Of all tensors, a multiple of 4.
        tensor_bytes: Of each but the last, a multiple of 4.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = [min(tensor_bytes, size_bytes - start) for start in range(0, size_bytes, tensor_bytes)]
    return {
        f"layers.{number}.weight": torch.empty(size // 4, dtype=torch.int32)
        .random_(generator=generator)
        .view(torch.float32 if number % 2 == 0 else torch.bfloat16)
        for number, size in enumerate(sizes)
    }


def bfloat16_weights(size_bytes: int, *, seed: int) -> Tensor:
    """Weights as an initialised network has them: normal, deviation 0.02."""
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(size_bytes // 2).normal_(0.0, 0.02, generator=generator).bfloat16()


def stepped(weights: Tensor, *, share: float, seed: int = 1) -> Tensor:
    """The weights after a small training step: ``share`` of the elements one unit in the last place up or down."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.empty(weights.numel()).uniform_(generator=generator)
    steps = (draw < share).to(torch.int16) * torch.where(draw < share / 2, -1, 1).to(torch.int16)
    return (weights.view(torch.int16) + steps).view(torch.bfloat16)


def body_and_head(weights: Tensor) -> dict[str, Tensor]:
    """A state dict of one body and one head, each with memory of its own."""
    size = weights.numel() // HEAD_SHARE
    return {"body.weight": weights[size:].clone(), "head.weight": weights[:size].clone()}


def with_new_head(weights: Tensor) -> Tensor:
    """The weights after training the head alone: all of it is new, the body is bit for bit as it was."""
    size = weights.numel() // HEAD_SHARE
    return torch.cat([bfloat16_weights(2 * size, seed=2), weights[size:]])
