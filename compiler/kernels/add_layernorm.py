"""``add_layernorm`` in Triton: both operands are read once; the sum leaves the registers only when it is asked for."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from compiler.kernels.launching import Launch
from compiler.kernels.operands import Operand, check_rows, describe
from compiler.kernels.rows import columns_of, launch_rows, load_vector, normalised, numbers_of


@triton.jit
def _kernel(
    x_ptr,
    residual_ptr,
    gain_ptr,
    bias_ptr,
    out_ptr,
    sum_ptr,
    count,
    columns,
    x_stride,
    residual_stride,
    eps,
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
        x_RD = tl.load(x_ptr + (row_R * x_stride)[:, None] + column_D[None, :], mask_RD, other=0.0)
        residual_RD = tl.load(residual_ptr + (row_R * residual_stride)[:, None] + column_D[None, :], mask_RD, other=0.0)
        sum_RD = x_RD.to(tl.float32) + residual_RD.to(tl.float32)
        y_RD = normalised(sum_RD, mask_RD, columns, eps) * gain_D[None, :] + bias_D[None, :]
        place_RD = (row_R * columns)[:, None] + column_D[None, :]
        tl.store(out_ptr + place_RD, y_RD.to(out_ptr.dtype.element_ty), mask_RD)
        if sum_ptr is not None:
            tl.store(sum_ptr + place_RD, sum_RD.to(sum_ptr.dtype.element_ty), mask_RD)


def add_layernorm(
    x: Tensor, residual: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, *, config: str = ""
) -> Tensor:
    """See ``compiler.kernels.reference.add_layernorm``."""
    launch = _prepare(describe(x), describe(residual), describe(gain), describe(bias), eps, config)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    launch(x, residual, gain, bias, out, None)
    return out


def add_layernorm_with_sum(
    x: Tensor, residual: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, *, config: str = ""
) -> tuple[Tensor, Tensor]:
    """See ``compiler.kernels.reference.add_layernorm_with_sum``."""
    launch = _prepare_with_sum(describe(x), describe(residual), describe(gain), describe(bias), eps, config)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    total = torch.empty_like(out)
    launch(x, residual, gain, bias, out, total)
    return out, total


def _launch(
    x: Operand, residual: Operand, gain: Operand | None, bias: Operand | None, eps: float, config: str
) -> Launch:
    check_rows("add_layernorm", x, gain=gain, bias=bias, residual=residual)
    return launch_rows(
        "add_layernorm", _kernel, matrices=(x, residual), vectors=(gain, bias), settings=(eps,), config=config
    )


# A launch remembers one compiled kernel: with and without the sum there are two.
_prepare = lru_cache(maxsize=4096)(_launch)
_prepare_with_sum = lru_cache(maxsize=4096)(_launch)
