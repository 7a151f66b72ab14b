"""``linear_act`` in Triton for large products on GPUs with a copy engine (Hopper and later).

As many blocks of threads as fit live on the multiprocessors and go through the tiles of the result together. The engine
fetches operands by descriptor, those of the next tile while bias and activation of this one are computed. It takes rows
that start on 16 bytes, in 16-bit dtypes; ``linear_act`` has a kernel for everything else.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from compiler.kernels.activation import activate
from compiler.kernels.configurations import TileConfig, budget
from compiler.kernels.launching import INTERPRETED
from compiler.kernels.operands import Operand
from compiler.kernels.tiles import tile_of

_ENGINE = 9  # compute capability from which there is one
_ALIGNMENT_BYTES = 16


@triton.jit
def _kernel(
    x_MK,
    weight_NK,
    out_MN,
    bias_ptr,
    M,
    N,
    K,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
    WIDEN: tl.constexpr,
):
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    for number in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_of(number, tiles_m, tiles_n, GROUP)
        sum_MN = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            a_MK = x_MK.load([tile_m * BLOCK_M, step * BLOCK_K])
            b_NK = weight_NK.load([tile_n * BLOCK_N, step * BLOCK_K])
            if WIDEN:
                a_MK = a_MK.to(tl.float32)
                b_NK = b_NK.to(tl.float32)
            sum_MN = tl.dot(a_MK, b_NK.T, sum_MN)
        if HALVES:
            left, right = tl.split(tl.permute(tl.reshape(sum_MN, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
            _finish(left, out_MN, bias_ptr, tile_m * BLOCK_M, tile_n * BLOCK_N, N, ACTIVATION)
            _finish(right, out_MN, bias_ptr, tile_m * BLOCK_M, tile_n * BLOCK_N + BLOCK_N // 2, N, ACTIVATION)
        else:
            _finish(sum_MN, out_MN, bias_ptr, tile_m * BLOCK_M, tile_n * BLOCK_N, N, ACTIVATION)


@triton.jit
def _finish(sum_MN, out_MN, bias_ptr, row, column, N, ACTIVATION: tl.constexpr):
    """Bias and activation of what begins at a row and column, and its way out."""
    if bias_ptr is not None:
        column_N = column + tl.arange(0, sum_MN.shape[1])
        sum_MN += tl.load(bias_ptr + column_N, column_N < N, other=0.0).to(tl.float32)[None, :]
    out_MN.store([row, column], activate(sum_MN, ACTIVATION, out_MN.dtype).to(out_MN.dtype))


def serves(x: Operand, weight: Operand, tile: TileConfig) -> bool:
    """Whether the kernel computes a product of these operands (at any address on 16 bytes) in such tiles."""
    if not tile.programs or min(*x.shape, weight.shape[0]) == 0 or not _has_engine(x.device):
        return False
    size, columns = x.dtype.itemsize, weight.shape[0]
    rows = ((x.strides, x.shape[1]), (weight.strides, x.shape[1]), ((columns, 1), columns))
    return size == 2 and all(
        step == 1 and row >= length and row * size % _ALIGNMENT_BYTES == 0 for (row, step), length in rows
    )


def _has_engine(device: torch.device) -> bool:
    return INTERPRETED or (device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= _ENGINE)


def are_aligned(tensors: Sequence[Tensor]) -> bool:
    """Whether the engine can read what lies there."""
    return all(tensor.data_ptr() % _ALIGNMENT_BYTES == 0 for tensor in tensors)


def launch(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, activation: str, tile: TileConfig) -> None:
    """Run on operands that ``serves`` and ``are_aligned`` accept, ordered by the current stream of their device.

    Args:
        x, weight, bias: As ``compiler.kernels.reference.linear_act`` takes them, x with two axes.
        out: Shape (M, N), contiguous.
    """
    (M, K), N = x.shape, weight.shape[0]
    columns = tile.n // 2 if tile.is_stored_in_halves(x.device, element_bytes=x.element_size()) else tile.n
    tiles = triton.cdiv(M, tile.m) * triton.cdiv(N, tile.n)
    _kernel[(min(tiles, tile.programs * budget(x.device).processors),)](
        TensorDescriptor.from_tensor(x, [tile.m, tile.k]),
        TensorDescriptor.from_tensor(weight, [tile.n, tile.k]),
        TensorDescriptor.from_tensor(out, [tile.m, columns]),
        bias,
        *(M, N, K, activation, tile.m, tile.n, tile.k, tile.group, columns != tile.n, INTERPRETED),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
