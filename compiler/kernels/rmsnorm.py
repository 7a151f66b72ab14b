"""``rmsnorm`` in Triton: a row is read once, stays in registers, is written once."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from compiler.kernels.launching import Launch
from compiler.kernels.operands import Operand, check_rows, describe
from compiler.kernels.rows import columns_of, launch_rows, load_vector, numbers_of


@triton.jit
def _kernel(
    x_ptr,
    gain_ptr,
    out_ptr,
    count,
    columns,
    x_stride,
    eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    column_D, mask_D = columns_of(columns, COLUMNS, WHOLE)
    gain_D = load_vector(gain_ptr, column_D, mask_D, 1.0)
    for block in tl.range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0), num_stages=STAGES):
        row_R, mask_RD = numbers_of(block, count, mask_D, ROWS, WIDE)
        x_RD = tl.load(x_ptr + (row_R * x_stride)[:, None] + column_D[None, :], mask_RD, other=0.0).to(tl.float32)
        square_R = tl.sum(x_RD * x_RD, 1) / columns
        y_RD = x_RD * tl.rsqrt(square_R + eps)[:, None] * gain_D[None, :]
        tl.store(out_ptr + (row_R * columns)[:, None] + column_D[None, :], y_RD.to(out_ptr.dtype.element_ty), mask_RD)


def rmsnorm(x: Tensor, gain: Tensor | None, eps: float, *, config: str = "") -> Tensor:
    """See ``compiler.kernels.reference.rmsnorm``."""
    launch = _prepare(describe(x), describe(gain), eps, config)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    launch(x, gain, out)
    return out


@lru_cache(maxsize=4096)
def _prepare(x: Operand, gain: Operand | None, eps: float, config: str) -> Launch:
    check_rows("rmsnorm", x, gain=gain)
    return launch_rows("rmsnorm", _kernel, matrices=(x,), vectors=(gain,), settings=(eps,), config=config)
