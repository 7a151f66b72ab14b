"""Operators over the last axis: how rows lie in memory, how a kernel over them is launched, and what kernels share.

Such a kernel takes, in this order: pointers to the matrices that it reads, to the vectors (gain, bias) or None, to the
matrices that it writes; the number of rows and of columns, the distance of rows in each matrix that it reads; its own
settings; ``ROWS``, ``COLUMNS``, ``WHOLE`` (rows are ``COLUMNS`` long: no mask along them), ``WIDE`` and ``STAGES``.
A block of ``ROWS`` rows is held in registers as a whole.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final, NamedTuple

import triton
import triton.language as tl

from compiler.kernels.configurations import RowConfig, budget, row_config
from compiler.kernels.errors import ShapeError
from compiler.kernels.launching import Launch, require_dtype
from compiler.kernels.operands import Operand

# 1024 threads hold a row of so many columns in 64 registers each, which is all that a multiprocessor has.
MOST_COLUMNS: Final = 1 << 16


class Rows(NamedTuple):
    """A tensor as a matrix: ``number`` rows, ``stride`` elements apart, the elements of each side by side.

    ``is_copied`` says that the tensor has to be made contiguous for that; ``is_wide`` that the last element lies 2³¹
    elements or more behind the first.
    """

    number: int
    columns: int
    stride: int
    is_copied: bool
    is_wide: bool


def rows_of(operand: Operand) -> Rows:
    """How the rows of an operand with at least one axis lie."""
    *sizes, columns = operand.shape
    *strides, step = operand.strides
    count = prod(sizes)
    axes = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    are_even = all(outer == size * inner for (_, outer), (size, inner) in pairwise(axes))
    is_copied = not are_even or (step != 1 and columns > 1)
    stride = axes[-1][1] if axes and not is_copied else columns
    return Rows(count, columns, stride, is_copied=is_copied, is_wide=count * max(stride, columns) >= 2**31)


def launch_rows(
    operator: str,
    kernel: Any,
    *,
    matrices: Sequence[Operand],
    vectors: Sequence[Operand | None] = (),
    settings: Sequence[Any] = (),
    config: str,
    is_wide: bool = False,
) -> Launch:
    """A launch over the rows of matrices of one shape.

    Raises:
        OperandError: No kernel computes the dtype.
        ShapeError: More columns than ``MOST_COLUMNS``.
        ChoiceError: ``config`` says something else than a ``RowConfig``.
    """
    first = matrices[0]
    require_dtype(operator, first.dtype)
    rows = [rows_of(matrix) for matrix in matrices]
    count, columns = rows[0].number, rows[0].columns
    if columns > MOST_COLUMNS:
        raise ShapeError(
            operator=operator, operand="x", found=tuple(first.shape), expected=f"at most {MOST_COLUMNS} columns"
        )
    if config:
        chosen = RowConfig.parse(operator, config)
    else:
        chosen = row_config(operator, columns, first.dtype, first.device)
        if count < chosen.rows * budget(first.device).processors:
            chosen = RowConfig(rows=1, warps=max(1, chosen.warps // chosen.rows), programs=0, stages=1)
    blocks = triton.cdiv(count, chosen.rows)
    copied = [index for index, row in enumerate(rows) if row.is_copied]
    copied += [
        len(rows) + index for index, vector in enumerate(vectors) if vector is not None and vector.strides != (1,)
    ]
    return Launch(
        kernel,
        grid=(min(blocks, chosen.programs * budget(first.device).processors) if chosen.programs else blocks,),
        settings=(
            count,
            columns,
            *(row.stride for row in rows),
            *settings,
            chosen.rows,
            triton.next_power_of_2(columns),
            triton.next_power_of_2(columns) == columns,
            is_wide or any(row.is_wide for row in rows),
            chosen.stages,
        ),
        device=first.device,
        copied=copied,
        num_warps=chosen.warps,
    )


@triton.jit
def columns_of(columns, COLUMNS: tl.constexpr, WHOLE: tl.constexpr):
    """The numbers of the columns, and the mask of those that exist."""
    column_D = tl.arange(0, COLUMNS)
    if WHOLE:
        mask_D = tl.full((COLUMNS,), True, tl.int1)
    else:
        mask_D = column_D < columns
    return column_D, mask_D


@triton.jit
def numbers_of(block, count, column_mask_D, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """The numbers of the rows of a block, and the mask of the elements that exist.

    With ``WIDE`` rows are numbered in 64 bits, so that row × stride may pass 2³¹; where it does not, nothing changes.
    """
    if WIDE:
        block = tl.cast(block, tl.int64)
    row_R = block * ROWS + tl.arange(0, ROWS)
    return row_R, (row_R < count)[:, None] & column_mask_D[None, :]


@triton.jit
def load_vector(pointer, column_D, mask_D, DEFAULT: tl.constexpr):
    """A gain or a bias in float32; ``DEFAULT`` everywhere when there is none."""
    if pointer is None:
        vector_D = tl.full(column_D.shape, DEFAULT, tl.float32)
    else:
        vector_D = tl.load(pointer + column_D, mask_D, other=0.0).to(tl.float32)
    return vector_D


@triton.jit
def normalised(x_RD, mask_RD, columns, eps):
    """Rows of mean 0 and variance 1, (x − mean) / √(var + eps), from float32 that is 0 outside the mask."""
    mean_R = tl.sum(x_RD, 1) / columns
    centred_RD = tl.where(mask_RD, x_RD - mean_R[:, None], 0.0)
    variance_R = tl.sum(centred_RD * centred_RD, 1) / columns
    return centred_RD * tl.rsqrt(variance_R + eps)[:, None]
