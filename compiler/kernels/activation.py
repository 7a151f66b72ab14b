"""Activations inside a kernel: float32 in, float32 out, the words of ``compiler.kernels.reference.ACTIVATIONS``."""

import triton
import triton.language as tl


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Apply an activation; NaN stays NaN.

    gelu_tanh is written with a logistic function, ``x·σ(2u) = x·(1 + tanh u) / 2``, which the interpreter has, too.
    """
    if ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    else:
        tl.static_assert(ACTIVATION == "none")
    return x
