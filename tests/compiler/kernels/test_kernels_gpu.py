"""What only a GPU can show: every size and dtype, results beyond 2³¹ elements, precisions, streams and graphs."""

import pytest
import torch
from torch import Tensor

from compiler import kernels
from compiler.kernels import OperandError
from tests.compiler.kernels.cases import BOUNDS, CALLS, INTERPRETED, Call, Draw, check, error, expected, kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="no GPU, or TRITON_INTERPRET is not 0"),
]

# A GPU rounds to the nearest: half a unit in the last of 8 bits for one value.
ROUNDED = {**BOUNDS, torch.bfloat16: 4e-3}
BAND = 25


@pytest.mark.parametrize("first", range(1, 301, BAND))
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("operator", CALLS)
def test_every_size_up_to_300_is_right(operator: str, dtype: torch.dtype, first: int) -> None:
    for size in range(first, first + BAND):
        draw = Draw(size, dtype)
        check(operator, CALLS[operator](draw, size * 7 % 300 + 1, size, size * 13 % 300 + 1), bound=ROUNDED[dtype])
        check(operator, CALLS[operator](draw, size, size * 11 % 300 + 1, size), bound=ROUNDED[dtype])


@pytest.mark.parametrize("columns", [769, 1024, 4096, 5000, 8192, 16384, 30000, 65536])
@pytest.mark.parametrize("operator", [name for name in CALLS if name != "linear_act"])
def test_long_rows_are_right(operator: str, columns: int) -> None:
    check(operator, CALLS[operator](Draw(0, torch.bfloat16), 40, columns), bound=ROUNDED[torch.bfloat16])


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize(
    "size", [(129, 520, 264), (1000, 1000, 1000), (2048, 2304, 2056), (4100, 4096, 2048), (8200, 8192, 200)], ids=str
)
def test_large_products_are_right(size: tuple[int, int, int], activation: str) -> None:
    rows, columns, depth = size
    call = CALLS["linear_act"](Draw(1, torch.bfloat16), rows, columns, depth, activation=activation)

    check("linear_act", call, bound=ROUNDED[torch.bfloat16])


def test_precision_is_what_was_asked_for() -> None:
    def distance(precision: str) -> float:
        call: Call = CALLS["linear_act"](Draw(2), 200, 300, 400, input_precision=precision)
        (exact,) = expected("linear_act", call)
        return error(kernel("linear_act")(*call[0], **call[1]), exact)

    assert distance("ieee") < 1e-6
    assert distance("tf32x3") < 2e-6
    assert 1e-5 < distance("tf32") < 1e-3


def test_float64_is_refused_by_kernels() -> None:
    kernels.register()
    with pytest.raises(OperandError, match=r"dtype of 'x' is torch\.float64, expected one of torch\.float16"):
        torch.ops.treering.rmsnorm(torch.ones(2, 3, dtype=torch.float64, device="cuda"), None, 1e-6)


# --- beyond 2³¹ -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", [name for name in CALLS if name != "linear_act"])
def test_rows_whose_last_lies_beyond_32_bits_are_as_if_alone(operator: str) -> None:
    rows, columns = (1 << 19) + 7, 4100
    (x, *others), named = CALLS[operator](Draw(3, torch.bfloat16), 7, columns)
    whole = x.repeat(rows // 7 + 1, 1)[:rows]
    spread = [other.repeat(rows // 7 + 1, 1)[:rows] if _is_matrix(other) else other for other in others]

    out = kernel(operator)(whole, *spread, **named)
    alone = kernel(operator)(x, *others, **named)

    for result, small in zip(_several(out), _several(alone), strict=True):
        assert result.numel() > 2**31
        for start in range(0, rows, 7 << 13):
            part = result[start : start + (7 << 13)]
            assert torch.equal(part, small.repeat(part.shape[0] // 7 + 1, 1)[: part.shape[0]])


def test_a_product_whose_last_lies_beyond_32_bits_is_as_if_alone() -> None:
    (x, weight, bias, activation), _ = CALLS["linear_act"](Draw(4, torch.bfloat16), 7, 4100, 24)
    rows = (1 << 19) + 7
    config = {"config": "m=64 n=64 k=32 group=8 warps=4 stages=2 programs=0"}

    out = kernel("linear_act")(x.repeat(rows // 7 + 1, 1)[:rows], weight, bias, activation, **config)
    alone = kernel("linear_act")(x, weight, bias, activation, **config)

    assert out.numel() > 2**31
    for start in range(0, rows, 7 << 13):
        part = out[start : start + (7 << 13)]
        assert torch.equal(part, alone.repeat(part.shape[0] // 7 + 1, 1)[: part.shape[0]])


# --- launching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", CALLS)
def test_a_call_like_an_earlier_one_reads_its_own_operands(operator: str) -> None:
    for seed in range(4):
        check(operator, CALLS[operator](Draw(seed, torch.bfloat16), 33, 96, 64), bound=ROUNDED[torch.bfloat16])


@pytest.mark.parametrize("operator", CALLS)
def test_operands_that_are_not_aligned_are_read_where_they_lie(operator: str) -> None:
    check(operator, CALLS[operator](Draw(5, torch.bfloat16), 32, 64, 64), bound=ROUNDED[torch.bfloat16])
    (x, *others), named = CALLS[operator](Draw(5, torch.bfloat16), 32, 64, 64)
    off = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape).copy_(x)

    check(operator, ((off, *others), named), bound=ROUNDED[torch.bfloat16])


@pytest.mark.parametrize("operator", CALLS)
def test_a_captured_graph_sees_new_values_at_the_same_addresses(operator: str) -> None:
    first, second = (CALLS[operator](Draw(seed, torch.bfloat16), 33, 96, 64) for seed in (6, 7))
    kernel(operator)(*first[0], **first[1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = _several(kernel(operator)(*first[0], **first[1]))

    for old, new in zip(first[0], second[0], strict=True):
        if isinstance(old, Tensor):
            old.copy_(new)
    graph.replay()

    for result, exact in zip(out, expected(operator, second), strict=True):
        assert error(result, exact) <= ROUNDED[torch.bfloat16]


def test_a_kernel_runs_on_the_current_stream() -> None:
    call = CALLS["rmsnorm"](Draw(8, torch.bfloat16), 33, 96)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        call[0][0].mul_(2)
        out = kernel("rmsnorm")(*call[0], **call[1])
    stream.synchronize()

    (exact,) = expected("rmsnorm", call)
    assert error(out, exact) <= ROUNDED[torch.bfloat16]


def _several(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else result


def _is_matrix(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 2
