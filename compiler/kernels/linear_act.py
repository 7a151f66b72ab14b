"""``linear_act`` in Triton: bias and activation are applied to the sums while they are in registers.

It takes every shape, stride and dtype. Operands are masked along K, too: what lies behind them is never multiplied.
What cuBLASLt applies itself is left to it; large products of operands that the copy engine can read, to
``linear_act_persistent``.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from compiler.kernels import linear_act_persistent as persistent
from compiler.kernels.activation import activate
from compiler.kernels.configurations import TileConfig, given_tile, tile_config
from compiler.kernels.launching import INTERPRETED, Launch, require_dtype
from compiler.kernels.operands import Operand, check_linear_act, describe
from compiler.kernels.tiles import tile_of


@triton.jit
def _kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    M,
    N,
    K,
    x_stride_m,
    x_stride_k,
    weight_stride_n,
    weight_stride_k,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    WIDE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    if WIDE:
        tile_m = tl.cast(tile_m, tl.int64)
        tile_n = tl.cast(tile_n, tl.int64)
        x_stride_k = tl.cast(x_stride_k, tl.int64)
        weight_stride_k = tl.cast(weight_stride_k, tl.int64)
    row_M = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column_N = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    step_K = tl.arange(0, BLOCK_K)
    x_MK = x_ptr + (row_M * x_stride_m)[:, None] + (step_K * x_stride_k)[None, :]
    weight_KN = weight_ptr + (column_N * weight_stride_n)[None, :] + (step_K * weight_stride_k)[:, None]
    sum_MN = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        is_there_K = step_K < K - start
        a_MK = tl.load(x_MK, (row_M < M)[:, None] & is_there_K[None, :], other=0.0)
        b_KN = tl.load(weight_KN, (column_N < N)[None, :] & is_there_K[:, None], other=0.0)
        if WIDEN:
            a_MK = a_MK.to(tl.float32)
            b_KN = b_KN.to(tl.float32)
        sum_MN = tl.dot(a_MK, b_KN, sum_MN, input_precision=PRECISION)
        x_MK += BLOCK_K * x_stride_k
        weight_KN += BLOCK_K * weight_stride_k
    if bias_ptr is not None:
        sum_MN += tl.load(bias_ptr + column_N, column_N < N, other=0.0).to(tl.float32)[None, :]
    y_MN = activate(sum_MN, ACTIVATION, out_ptr.dtype.element_ty).to(out_ptr.dtype.element_ty)
    place_MN = (row_M * N)[:, None] + column_N[None, :]
    tl.store(out_ptr + place_MN, y_MN, (row_M < M)[:, None] & (column_N < N)[None, :])


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    *,
    input_precision: str = "ieee",
    config: str = "",
) -> Tensor:
    """See ``compiler.kernels.reference.linear_act``."""
    x_MK = _as_matrix(x)
    launch, tile = _prepare(describe(x_MK), describe(weight), describe(bias), activation, input_precision, config)
    if launch is None:
        assert bias is not None, "the library is chosen for products with a bias"
        out = _by_library(x_MK, weight, bias, activation)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], weight.shape[0])
    out = x.new_empty((*x.shape[:-1], weight.shape[0]))
    if tile is not None and persistent.are_aligned((x_MK, weight)):
        with _on(x.device):
            persistent.launch(x_MK, weight, bias, _as_matrix(out), activation=activation, tile=tile)
    else:
        launch(x_MK, weight, bias, out)
    return out


def _on(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _as_matrix(x: Tensor) -> Tensor:
    return x if x.dim() in (0, 2) else x.reshape(x.shape[:-1].numel(), x.shape[-1])


class _Prepared(NamedTuple):
    """Neither: the library's. ``tile``: the persistent kernel's, for which ``launch`` stands in at odd addresses."""

    launch: Launch | None
    tile: TileConfig | None


@lru_cache(maxsize=4096)
def _prepare(
    x: Operand, weight: Operand, bias: Operand | None, activation: str, input_precision: str, config: str
) -> _Prepared:
    check_linear_act(x, weight, bias, activation, input_precision)
    require_dtype("linear_act", x.dtype)
    (M, K), N = x.shape, weight.shape[0]
    if not config and bias is not None and activation in _BY_LIBRARY and _is_for_library(x, N):
        return _Prepared(None, None)
    if config:
        tile = given_tile(config, x.dtype, x.device)
    else:
        tile = tile_config("linear_act", min(M, N), x.dtype, x.device)
    launch = Launch(
        _kernel,
        grid=(triton.cdiv(M, tile.m) * triton.cdiv(N, tile.n),),
        settings=(
            *(M, N, K, *x.strides, *weight.strides),
            *(activation, input_precision, tile.m, tile.n, tile.k, tile.group),
            x.is_wide or weight.is_wide or M * N >= 2**31,
            INTERPRETED,
        ),
        device=x.device,
        copied=(2,) if bias is not None and bias.strides != (1,) else (),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    is_persistent = persistent.serves(x, weight, tile) and (bias is None or bias.strides == (1,))
    return _Prepared(launch, tile if is_persistent else None)


# What cuBLASLt applies on its way out. For float32 torch's own switches would decide about tf32, so that is done here.
_BY_LIBRARY: Final = ("none", "relu", "gelu_tanh")


def _is_for_library(x: Operand, columns: int) -> bool:
    return x.device.type == "cuda" and x.dtype is not torch.float32 and min(*x.shape, columns) > 0


def _by_library(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    if activation == "none":
        return functional.linear(x, weight, bias)
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=activation == "gelu_tanh")
