"""The reference of every fused operator: eager PyTorch, operator by operator. What CPUs run, and the oracle of tests.

References check their operands, so the same wrong call is refused alike while a model is traced, on the CPU and on a
GPU. They take float64, too: a kernel is compared with its reference on the same numbers in float64.
"""

import torch
from torch import Tensor
from torch.nn import functional

from compiler.kernels.operands import ACTIVATIONS, check_linear_act, check_rows, check_softmax


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    *,
    input_precision: str = "ieee",
    config: str = "",
) -> Tensor:
    """Multiply by a matrix, add a bias and apply an activation.

        y[…, n] = act(Σ_k x[…, k] · weight[n, k] + bias[n])

    Args:
        x: Shape (…, K), float16, bfloat16 or float32 (here also float64); any strides.
        weight: Shape (N, K), dtype and device of ``x``; any strides.
        bias: Shape (N,), likewise, or None.
        activation: A key of ``compiler.kernels.operands.ACTIVATIONS``.
        input_precision: A word of ``compiler.kernels.operands.PRECISIONS``, for float32 on a GPU: "ieee" multiplies in
            full; "tf32" rounds operands to 10 bits of mantissa; "tf32x3" does that thrice, about as exact as "ieee".
        config: How a kernel is launched, in the words of ``compiler.kernels.configurations``; "" looks it up.

    Returns:
        Shape (…, N), contiguous, dtype of ``x``.

    Raises:
        ShapeError: ``weight`` or ``bias`` does not fit.
        OperandError: Dtypes or devices differ.
        ChoiceError: ``activation`` or ``input_precision`` is not in its table.
    """
    check_linear_act(x, weight, bias, activation, input_precision)
    return ACTIVATIONS[activation](functional.linear(x, weight, bias)).contiguous()


def layernorm_act(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, activation: str, *, config: str = ""
) -> Tensor:
    """Normalise each row, scale it and apply an activation, in one pass over memory.

        y[…, d] = act(gain[d] · (x[…, d] − mean_d x) / √(var_d x + eps) + bias[d])

    Args:
        x: Shape (…, D), D ≥ 1, float16, bfloat16 or float32 (here also float64); any strides.
        gain, bias: Shape (D,), dtype and device of ``x``, or None.
        eps: Added to the variance (squared units of ``x``), ≥ 0.
        activation: A key of ``ACTIVATIONS``.
        config: As for ``linear_act``.

    Returns:
        Shape of ``x``, contiguous, dtype of ``x``; mean and variance are taken in float32 whatever the dtype.

    Raises:
        ShapeError, OperandError, ChoiceError: As for ``linear_act``.

    Source:
        Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    check_rows("layernorm_act", x, gain=gain, bias=bias, activation=activation)
    normal = functional.layer_norm(x, x.shape[-1:], gain, bias, eps)
    return ACTIVATIONS[activation](normal).contiguous()


def add_layernorm(
    x: Tensor, residual: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, *, config: str = ""
) -> Tensor:
    """Add two tensors and normalise each row of the sum: ``layernorm_act`` of ``x + residual`` without an activation.

    Args:
        x, residual: Shape (…, D), D ≥ 1, of one dtype and device; any strides.
        gain, bias, eps, config: As for ``layernorm_act``.

    Returns:
        Shape of ``x``, contiguous, dtype of ``x``. A kernel normalises the sum as float32 holds it, not as rounded.
    """
    return add_layernorm_with_sum(x, residual, gain, bias, eps)[0]


def add_layernorm_with_sum(
    x: Tensor, residual: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, *, config: str = ""
) -> tuple[Tensor, Tensor]:
    """``add_layernorm``, and the sum itself (shape and dtype of ``x``), which a pre-norm block goes on with."""
    check_rows("add_layernorm", x, gain=gain, bias=bias, residual=residual)
    total = (x + residual).contiguous()
    return functional.layer_norm(total, x.shape[-1:], gain, bias, eps), total


def rmsnorm(x: Tensor, gain: Tensor | None, eps: float, *, config: str = "") -> Tensor:
    """Divide each row by the root of its mean square.

        y[…, d] = gain[d] · x[…, d] / √(mean_d x² + eps)

    Args:
        x, gain, eps, config: As for ``layernorm_act``.

    Returns:
        Shape of ``x``, contiguous, dtype of ``x``.

    Source:
        Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    check_rows("rmsnorm", x, gain=gain)
    return functional.rms_norm(x, x.shape[-1:], gain, eps).contiguous()


def softmax(x: Tensor, mask: Tensor | None, *, scale: float = 1.0, config: str = "") -> Tensor:
    """Exponentials of each row, scaled to the sum 1, under a mask.

        y[…, n] = exp(z[…, n]) / Σ_m exp(z[…, m]),   z = scale · x + mask

    Args:
        x: Shape (…, N), N ≥ 1, float16, bfloat16 or float32 (here also float64); any strides.
        mask: Broadcastable to ``x``; floating and added, or bool with True where an element takes part. None is none.
        scale: Multiplies ``x`` before the mask is added.
        config: As for ``linear_act``.

    Returns:
        Shape of ``x``, contiguous, dtype of ``x``. A row of which nothing takes part is NaN, as ``torch.softmax`` has
        it (attention kernels give 0 there); so is a row that holds NaN or +inf.

    Raises:
        ShapeError: ``mask`` cannot be broadcast to ``x``.
        OperandError: As for ``linear_act``.
    """
    check_softmax(x, mask)
    scaled = x if scale == 1.0 else x * scale
    if mask is not None:
        scaled = scaled.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scaled + mask
    return torch.softmax(scaled, -1).to(x.dtype).contiguous()
