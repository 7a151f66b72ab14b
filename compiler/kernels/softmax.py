"""``softmax`` in Triton: scale, mask, greatest, sum and quotient while a row is in registers.

The mask is never made as large as ``x``: it is read through the strides that broadcasting gives it, of at most three
axes before the last.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from compiler.kernels.launching import Launch
from compiler.kernels.operands import Operand, check_softmax, describe
from compiler.kernels.rows import columns_of, launch_rows, numbers_of


@triton.jit
def _kernel(
    x_ptr,
    mask_ptr,
    out_ptr,
    count,
    columns,
    x_stride,
    scale,
    size_1,
    size_2,
    mask_stride_0,
    mask_stride_1,
    mask_stride_2,
    mask_step,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    column_D, mask_D = columns_of(columns, COLUMNS, WHOLE)
    for block in tl.range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0), num_stages=STAGES):
        row_R, mask_RD = numbers_of(block, count, mask_D, ROWS, WIDE)
        x_RD = tl.load(x_ptr + (row_R * x_stride)[:, None] + column_D[None, :], mask_RD, other=0.0).to(tl.float32)
        x_RD = x_RD * scale
        if mask_ptr is not None:
            first_R = row_R // (size_1 * size_2) * mask_stride_0
            second_R = row_R // size_2 % size_1 * mask_stride_1
            place_R = first_R + second_R + row_R % size_2 * mask_stride_2
            given_RD = tl.load(mask_ptr + place_R[:, None] + (column_D * mask_step)[None, :], mask_RD, other=0)
            if mask_ptr.dtype.element_ty == tl.uint8:
                x_RD = tl.where(given_RD != 0, x_RD, float("-inf"))
            else:
                x_RD += given_RD.to(tl.float32)
        x_RD = tl.where(mask_RD, x_RD, float("-inf"))
        power_RD = tl.exp(x_RD - tl.max(x_RD, 1)[:, None])
        y_RD = power_RD * (1.0 / tl.sum(power_RD, 1))[:, None]
        tl.store(out_ptr + (row_R * columns)[:, None] + column_D[None, :], y_RD.to(out_ptr.dtype.element_ty), mask_RD)


class _Prepared(NamedTuple):
    launch: Launch
    is_spread: bool


def softmax(x: Tensor, mask: Tensor | None, *, scale: float = 1.0, config: str = "") -> Tensor:
    """See ``compiler.kernels.reference.softmax``."""
    launch, is_spread = _prepare(describe(x), describe(mask), scale, config)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if mask is not None and is_spread:
        mask = mask.expand(x.shape).contiguous()
    if mask is not None and mask.dtype is torch.bool:
        mask = mask.view(torch.uint8)
    launch(x, mask, out)
    return out


@lru_cache(maxsize=4096)
def _prepare(x: Operand, mask: Operand | None, scale: float, config: str) -> _Prepared:
    check_softmax(x, mask)
    is_spread = mask is not None and len(x.shape) > 4
    size_1, size_2, strides = (1, 1, (0, 0, 0, 0)) if mask is None else _places(x, mask, is_spread=is_spread)
    settings = (scale, size_1, size_2, *strides)
    is_wide = mask is not None and mask.is_wide
    launch = launch_rows("softmax", _kernel, matrices=(x,), settings=settings, config=config, is_wide=is_wide)
    return _Prepared(launch, is_spread)


def _places(x: Operand, mask: Operand, *, is_spread: bool) -> tuple[int, int, tuple[int, ...]]:
    """Sizes of the two axes before the last, and the mask's strides along the last four, 0 where it repeats."""
    if is_spread:
        return 1, 1, (x.shape[-1], 0, 0, 1)
    missing = 4 - len(mask.shape)
    strides = [0 if size == 1 else stride for size, stride in zip(mask.shape, mask.strides, strict=True)]
    _, size_1, size_2, _ = (1,) * (4 - len(x.shape)) + tuple(x.shape)
    return size_1, size_2, (*(0,) * missing, *strides)
