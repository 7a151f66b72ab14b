"""Every kernel computes its reference (in the interpreter or on a GPU): sizes, strides, dtypes, values at the edge."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compiler.kernels import OPERATIONS, configurations
from compiler.kernels.configurations import RowConfig, TileConfig
from tests.compiler.kernels.cases import ACTIVATIONS, CALLS, DEVICE, MARKS, Draw, check, error, expected, kernel

pytestmark = MARKS

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = ((1, 1, 1), (1, 17, 5), (3, 64, 64), (5, 100, 33), (9, 257, 65), (2, 300, 300))
ROWS = ("layernorm_act", "add_layernorm", "rmsnorm", "softmax")


@pytest.fixture(autouse=True)
def _as_silent_as_a_gpu() -> Iterator[None]:
    """NumPy warns of inf − inf, also in lanes that are masked."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("operator", CALLS)
def test_a_kernel_computes_its_reference(operator: str, size: tuple[int, int, int], dtype: torch.dtype) -> None:
    check(operator, CALLS[operator](Draw(0, dtype), *size))


@pytest.mark.parametrize("operator", CALLS)
@settings(max_examples=8, deadline=None)
@given(size=st.tuples(st.integers(1, 40), st.integers(1, 300), st.integers(1, 300)), seed=st.integers(0, 1000))
def test_any_size_is_right(operator: str, size: tuple[int, int, int], seed: int) -> None:
    check(operator, CALLS[operator](Draw(seed), *size))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("operator", ["linear_act", "layernorm_act"])
def test_every_activation_is_applied(operator: str, activation: str) -> None:
    check(operator, CALLS[operator](Draw(1), 9, 40, 24, activation=activation))


@pytest.mark.parametrize("operator", ["linear_act", "layernorm_act"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_infinity_go_where_eager_lets_them(operator: str, activation: str) -> None:
    edge = torch.tensor(
        [[torch.nan, 1.0, 2.0], [torch.inf, -1.0, 0.0], [-torch.inf, 0.5, 3.0], [1.0, 2.0, -3.0]], device=DEVICE
    )
    if operator == "linear_act":
        call = ((edge, torch.eye(3, device=DEVICE), torch.zeros(3, device=DEVICE), activation), {})
    else:
        call = ((edge, None, None, 1e-5, activation), {})

    out, (exact,) = kernel(operator)(*call[0]), expected(operator, call)

    torch.testing.assert_close(out.double().cpu(), exact, rtol=1e-5, atol=1e-6, equal_nan=True)


# --- operands ---------------------------------------------------------------------------------------------------------


def _odd_views(draw: Draw, rows: int, columns: int) -> dict[str, Tensor]:
    return {
        "transposed": draw(columns, rows).t(),
        "every second column": draw(rows, 2 * columns)[:, ::2],
        "part of longer rows": draw(rows, columns + 5)[:, 3 : 3 + columns],
        "one row again and again": draw(1, columns).expand(rows, columns),
        "rows behind an offset": draw(rows + 1, columns)[1:],
    }


@pytest.mark.parametrize("view", _odd_views(Draw(0), 2, 2))
@pytest.mark.parametrize("operator", CALLS)
def test_strides_of_any_kind_are_followed(operator: str, view: str) -> None:
    draw = Draw(2)
    (_, *others), named = CALLS[operator](draw, 6, 20, 20)

    check(operator, ((_odd_views(draw, 6, 20)[view], *others), named))


@pytest.mark.parametrize("operator", CALLS)
def test_axes_before_the_last_are_rows_whatever_their_order(operator: str) -> None:
    draw = Draw(3)
    (_, *others), named = CALLS[operator](draw, 12, 20, 20)
    if operator.startswith("add_layernorm"):
        others[0] = draw(3, 4, 20)
    if operator == "softmax":
        others[0] = None

    check(operator, ((draw(3, 4, 20), *others), named))
    check(operator, ((draw(4, 3, 20).transpose(0, 1), *others), named))
    check(operator, ((draw(3, 1, 8, 20)[:, :, ::2].squeeze(1), *others), named))


def test_weights_and_vectors_may_be_strided_or_absent() -> None:
    draw = Draw(4)

    check("linear_act", ((draw(5, 20), draw(20, 7).t(), draw(14)[::2], "silu"), {}))
    check("linear_act", ((draw(5, 20), draw(7, 40)[:, ::2], None, "silu"), {}))
    check("layernorm_act", ((draw(5, 20), draw(40)[::2], draw(1).expand(20), 1e-5, "relu"), {}))
    check("layernorm_act", ((draw(5, 20), None, draw(20), 1e-5, "none"), {}))
    check("add_layernorm", ((draw(5, 20), draw(20, 5).t(), None, None, 1e-5), {}))
    check("rmsnorm", ((draw(5, 20), None, 1e-6), {}))


@pytest.mark.parametrize("operator", CALLS)
def test_no_rows_give_no_rows(operator: str) -> None:
    check(operator, CALLS[operator](Draw(5), 0, 20, 20))


def test_a_sum_over_nothing_is_the_bias_and_no_columns_are_none() -> None:
    draw = Draw(6)

    check("linear_act", ((draw(3, 0), draw(4, 0), draw(4), "relu"), {}))
    check("linear_act", ((draw(3, 5), draw(0, 5), draw(0), "relu"), {}))
    check("linear_act", ((draw(5), draw(4, 5), draw(4), "relu"), {}))


# --- what lies beyond 2³¹ ---------------------------------------------------------------------------------------------


def _far(rows: Tensor) -> Tensor:
    """The same rows 2³⁰ elements apart: the last of four lies beyond 2³¹. Untouched pages take no memory."""
    far = torch.empty((3 << 30) + rows.shape[1], dtype=rows.dtype, device=rows.device).as_strided(
        rows.shape, (1 << 30, 1)
    )
    return far.copy_(rows)


@pytest.mark.parametrize("operator", CALLS)
def test_offsets_beyond_32_bits_change_no_bit(operator: str) -> None:
    (x, *others), named = CALLS[operator](Draw(7, torch.float16), 4, 24, 24)

    near = kernel(operator)(x, *others, **named)
    far = kernel(operator)(_far(x), *others, **named)

    torch.testing.assert_close(far, near, rtol=0, atol=0)


def test_a_weight_and_a_mask_may_reach_beyond_32_bits() -> None:
    draw = Draw(8, torch.float16)
    x, weight, mask = draw(4, 24), draw(4, 24), draw(4, 24)

    near = kernel("linear_act")(x, weight, None, "none")
    assert torch.equal(kernel("linear_act")(x, _far(weight), None, "none"), near)
    assert torch.equal(kernel("softmax")(x, _far(mask)), kernel("softmax")(x, mask))


# --- softmax ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 1, 1, 7), (1, 3, 1, 7), (1, 1, 5, 7), (5, 7), (7,), (2, 3, 5, 1)])
@pytest.mark.parametrize("kind", ["bool", "added"])
def test_a_mask_is_broadcast(shape: tuple[int, ...], kind: str) -> None:
    draw = Draw(9)
    mask = draw.flags(*shape) if kind == "bool" else draw(*shape)
    call = ((draw(2, 3, 5, 7), mask), {"scale": 0.5})

    out, (exact,) = kernel("softmax")(*call[0], **call[1]), expected("softmax", call)

    torch.testing.assert_close(out.double().cpu(), exact, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_mask_over_five_axes_and_one_over_one_axis_work() -> None:
    draw = Draw(10)

    check("softmax", ((draw(2, 2, 3, 4, 6), draw(2, 1, 3, 1, 6)), {}))
    check("softmax", ((draw(6), draw(6)), {}))
    check("softmax", ((draw(3, 6), draw(6, 3).t()), {}))


def test_rows_that_nothing_takes_part_in_are_nan_and_others_are_not() -> None:
    x = torch.tensor(
        [[1.0, 2.0, 3.0], [-torch.inf, -torch.inf, -torch.inf], [torch.nan, 0.0, 1.0], [torch.inf, 0, 0]]
    ).to(DEVICE)
    padded = torch.tensor([[0.0, 0.0, -torch.inf]], device=DEVICE).expand(4, 3)

    out, exact = kernel("softmax")(x, padded), torch.softmax(x + padded, -1)

    torch.testing.assert_close(out, exact, equal_nan=True)
    assert out.isnan().any(1).tolist() == [False, True, True, True]
    assert kernel("softmax")(x[:1], torch.zeros(1, 3, dtype=torch.bool, device=DEVICE)).isnan().all()


def test_large_values_do_not_overflow() -> None:
    x = torch.tensor([[3e4, 2.9e4, -3e4]], dtype=torch.float16, device=DEVICE)

    torch.testing.assert_close(kernel("softmax")(x, None), torch.softmax(x, -1))


# --- configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ROWS)
@pytest.mark.parametrize(
    "config",
    ["rows=1 warps=1 programs=0 stages=1", "rows=4 warps=8 programs=1 stages=1", "rows=16 warps=4 programs=2 stages=3"],
)
def test_a_configuration_decides_the_speed_alone(operator: str, config: str) -> None:
    positional, named = CALLS[operator](Draw(11), 20, 40)

    check(operator, (positional, {**named, "config": config}))


def test_tiles_of_any_size_give_the_product() -> None:
    for tile in (
        TileConfig(m=16, n=32, k=16, group=1, warps=4, stages=2, programs=0),
        TileConfig(m=64, n=16, k=128, group=4, warps=4, stages=2, programs=0),
    ):
        check("linear_act", CALLS["linear_act"](Draw(12), 150, 70, 90, config=str(tile)))


@pytest.mark.parametrize("programs", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [(150, 72, 88), (64, 64, 64), (1, 8, 8), (700, 200, 40)], ids=str)
def test_programs_that_go_through_tiles_give_the_product(
    size: tuple[int, int, int], dtype: torch.dtype, programs: int
) -> None:
    config = f"m=64 n=32 k=64 group=8 warps=4 stages=2 programs={programs}"

    check("linear_act", CALLS["linear_act"](Draw(13, dtype), *size, config=config))


def test_operands_that_no_copy_engine_reads_are_multiplied_all_the_same() -> None:
    config = "m=64 n=32 k=64 group=8 warps=4 stages=2 programs=1"
    (x, weight, bias, activation), _ = CALLS["linear_act"](Draw(14, torch.float16), 40, 72, 88)
    aside = torch.empty(x.numel() + 1, dtype=x.dtype, device=DEVICE)[1:].view(x.shape).copy_(x)
    across, one = weight.t().contiguous().t(), x[:1].expand(40, 88)

    for call in (
        (aside, weight, bias, activation),
        (x, across, bias, activation),
        (x, weight, None, activation),
        (one, weight, bias, activation),
    ):
        check("linear_act", (call, {"config": config}))


def test_the_table_is_looked_up_by_device_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (RowConfig(rows=rows, warps=4, programs=0, stages=1) for rows in (8, 1))
    rows = [
        configurations.Measured(
            device="interpreter", operator="rmsnorm", bits=16, size=size, config=config, evidence=""
        )
        for size, config in ((4096, large), (256, small))
    ]
    monkeypatch.setattr(configurations, "TABLE", tuple(rows))
    monkeypatch.setattr(configurations, "row_config", configurations.row_config.__wrapped__)
    device = torch.device("cpu")

    found = [configurations.config_for("rmsnorm", (9, size), torch.float16, device) for size in (1, 256, 257, 4096)]

    assert found == [small, small, large, large]
    assert configurations.config_for("rmsnorm", (9, 4097), torch.float16, device) not in (small, large)
    assert configurations.config_for("rmsnorm", (9, 256), torch.float32, device) not in (small, large)


def test_the_error_that_tests_bound_can_be_large() -> None:
    exact = torch.ones(4, dtype=torch.float64)

    assert error(torch.tensor([1.0, 1.0, 1.0, 1.1]), exact) > 0.04
    assert not error(torch.tensor([1.0, 1.0, 1.0, torch.nan]), exact) <= 1
    assert set(CALLS) == set(OPERATIONS)
