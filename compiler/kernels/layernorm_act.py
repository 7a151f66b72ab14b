"""``layernorm_act`` in Triton: a row is read once, is in registers until its activation, and is written once."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from compiler.kernels.activation import activate
from compiler.kernels.launching import Launch
from compiler.kernels.operands import Operand, check_rows, describe
from compiler.kernels.rows import columns_of, launch_rows, load_vector, normalised, numbers_of


@triton.jit
def _kernel(
    x_ptr,
    gain_ptr,
    bias_ptr,
    out_ptr,
    count,
    columns,
    x_stride,
    eps,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    column_D, mask_D = columns_of(columns, COLUMNS, WHOLE)
    gain_D = load_vector(gain_ptr, column_D, mask_D, 1.0)
    bias_D = load_vector(bias_ptr, column_D, mask_D, 0.0)
    for block in tl.range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0), num_stages=STAGES):
        row_R, mask_RD = numbers_of(block, count, mask_D, ROWS, WIDE)
        x_RD = tl.load(x_ptr + (row_R * x_stride)[:, None] + column_D[None, :], mask_RD, other=0.0).to(tl.float32)
        y_RD = normalised(x_RD, mask_RD, columns, eps) * gain_D[None, :] + bias_D[None, :]
        y_RD = activate(y_RD, ACTIVATION, out_ptr.dtype.element_ty).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + (row_R * columns)[:, None] + column_D[None, :], y_RD, mask_RD)


def layernorm_act(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, activation: str, *, config: str = ""
) -> Tensor:
    """See ``compiler.kernels.reference.layernorm_act``."""
    launch = _prepare(describe(x), describe(gain), describe(bias), eps, activation, config)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    launch(x, gain, bias, out)
    return out


@lru_cache(maxsize=4096)
def _prepare(
    x: Operand, gain: Operand | None, bias: Operand | None, eps: float, activation: str, config: str
) -> Launch:
    check_rows("layernorm_act", x, gain=gain, bias=bias, activation=activation)
    return launch_rows(
        "layernorm_act", _kernel, matrices=(x,), vectors=(gain, bias), settings=(eps, activation), config=config
    )
