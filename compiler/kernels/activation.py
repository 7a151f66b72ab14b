"""Activations inside a kernel: float32 in, float32 out, the words of ``compiler.kernels.reference.ACTIVATIONS``.

An operator over rows has some 25 instructions for an element on an H200 before it is slower than its memory, and erf
takes as many alone. So what is rounded to 16 bits anyway is computed with fewer.
"""

import triton
import triton.language as tl


@triton.jit
def activate(x, ACTIVATION: tl.constexpr, DTYPE: tl.constexpr):
    """Apply an activation whose result is rounded to ``DTYPE``; NaN stays NaN.

    gelu_tanh is written with a logistic function, ``x·σ(2u) = x·(1 + tanh u) / 2``, which the interpreter has, too.
    """
    if ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "gelu":
        if tl.bfloat16 == DTYPE:
            x = _gelu_of_8_bits(x)
        else:
            x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        x = x * _logistic(1.5957691216057308 * (x + 0.044715 * x * x * x), DTYPE)
    elif ACTIVATION == "silu":
        x = x * _logistic(x, DTYPE)
    else:
        tl.static_assert(ACTIVATION == "none")
    return x


@triton.jit
def _gelu_of_8_bits(x):
    """x·Φ(x) within 5.8e-4 of itself where x > −4.5 (half a unit of bfloat16 is 2e-3), within 5.8e-7 elsewhere.

    Φ(x) = 1 / (1 + 2^−y): y ÷ x is a polynomial in x², fitted for the least relative error on −4.5 ≤ x ≤ 4.5.
    """
    square = x * x
    factor = (4.49909262e-7 * square - 6.81845568e-6) * square - 1.14063237e-3
    y = x * ((factor * square + 0.107982091) * square + 2.29935662)
    return x * _one_over(1.0 + tl.exp2(-y))


@triton.jit
def _logistic(x, DTYPE: tl.constexpr):
    """1 / (1 + exp(−x))."""
    if tl.float32 == DTYPE:
        y = tl.sigmoid(x)
    else:
        y = _one_over(1.0 + tl.exp2(-1.4426950408889634 * x))
    return y


@triton.jit
def _one_over(x):
    """1 / x for x ≥ 1 within 1e-6, in a third of the instructions of a division; 0 for infinity."""
    root = tl.rsqrt(x)
    return root * root
