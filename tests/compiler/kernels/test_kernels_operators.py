"""Fused operators as torch, the compiler and a program see them, and what each refuses with which words."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler import kernels, operators
from compiler.kernels import OPERATIONS, BudgetError, ChoiceError, OperandError, ShapeError, configurations
from compiler.kernels.configurations import RowConfig, TileConfig
from tests.compiler.kernels.cases import CALLS, Draw

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
import compiler
from compiler import kernels
kernels.register()
print(torch.ops.treering.rmsnorm(torch.ones(2, 3), None, 0.0).tolist())
"""


def packet(operator: str) -> Any:
    name = f"treering.{operator}" if "." in operator else f"treering.{operator}.default"
    found = operators.find(name)
    assert found is not None
    return found.function


@pytest.mark.parametrize("operator", CALLS)
def test_on_the_cpu_an_operator_is_its_reference(operator: str) -> None:
    positional, named = CALLS[operator](Draw(0, torch.bfloat16, "cpu"), 5, 12, 8)

    torch.testing.assert_close(
        packet(operator)(*positional, **named), OPERATIONS[operator].reference(*positional, **named), rtol=0, atol=0
    )


@pytest.mark.parametrize("operator", CALLS)
def test_torch_holds_an_operator_to_its_schema_and_its_fake(operator: str) -> None:
    positional, named = CALLS[operator](Draw(0, torch.float32, "cpu"), 5, 12, 8)

    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(packet(operator), positional, named, test_utils=tests)


def test_triton_is_not_needed_until_a_kernel_is_launched() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False)

    assert done.stdout == "[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]\n", done.stderr


def test_every_entry_of_the_table_can_be_stated_in_a_program() -> None:
    for name in OPERATIONS:
        operator = operators.find(f"treering.{name}" if "." in name else f"treering.{name}.default")
        assert operator is not None
        assert operator.devices == ("cpu", "cuda")
        assert not operator.function._schema.is_mutable
    assert operators.find("treering.nothing.default") is None
    assert operators.find("treering.nothing") is None


class Block(nn.Module):
    """A layer of a transformer's feed-forward part, in fused operators."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.norm = nn.Linear(16, 40), nn.Linear(40, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        ops = torch.ops.treering
        y = ops.linear_act(
            x, self.inner.weight, self.inner.bias, "gelu", config="m=64 n=64 k=32 group=8 warps=4 stages=2 programs=0"
        )
        y = ops.linear_act(y, self.outer.weight, self.outer.bias, "none")
        y, total = ops.add_layernorm.with_sum(y, x, self.norm.weight, self.norm.bias, 1e-5)
        return ops.softmax(y + total, None, scale=0.5)


@pytest.mark.parametrize("backend", ["eager", pytest.param("aoti", marks=pytest.mark.slow)])
def test_a_program_holds_fused_operators_with_their_configuration(tmp_path: Path, backend: str) -> None:
    kernels.register()
    model, x = Block().eval(), torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    dynamic = {"x": {0: compiler.Dim(name="rows", max=64)}}

    program = compiler.compile(model, (x,), dynamic=dynamic, backend=backend)
    program.save(tmp_path / "program")
    loaded = compiler.load(tmp_path / "program")

    names = [node.operator for node in loaded.definition.nodes]
    assert "treering.linear_act.default" in names
    assert "treering.add_layernorm.with_sum" in names
    first = next(node for node in loaded.definition.nodes if node.operator == "treering.linear_act.default")
    assert TileConfig.parse("linear_act", str(dict(first.arguments)["config"])).m == 64
    (out,) = loaded.bind(model.state_dict())(x)
    torch.testing.assert_close(out, model(x))


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_weight_of_another_depth_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"linear_act: shape of 'weight' is \(4, 6\), expected \(N, 5\): x has 5 col"):
        packet("linear_act")(torch.ones(2, 5), torch.ones(4, 6), None, "relu")


def test_vectors_and_residuals_of_another_shape_are_refused() -> None:
    x, vector = torch.ones(2, 5), torch.ones(4)
    with pytest.raises(ShapeError, match=r"'gain' is \(4,\), expected \(5,\)"):
        packet("layernorm_act")(x, vector, None, 1e-5, "relu")
    with pytest.raises(ShapeError, match=r"'bias' is \(5, 1\), expected \(3,\)"):
        packet("linear_act")(x, torch.ones(3, 5), torch.ones(5, 1), "relu")
    with pytest.raises(ShapeError, match=r"'residual' is \(1, 5\), expected \(2, 5\), as x"):
        packet("add_layernorm")(x, x[:1], None, None, 1e-5)
    with pytest.raises(ShapeError, match=r"'mask' is \(3, 5\), expected one that can be broadcast to \(2, 5\)"):
        packet("softmax")(x, torch.ones(3, 5))
    with pytest.raises(ShapeError, match=r"'mask' is \(1, 2, 5\)"):
        packet("softmax")(x, torch.ones(1, 2, 5))


@pytest.mark.parametrize("operator", ["layernorm_act", "add_layernorm", "rmsnorm", "softmax"])
def test_rows_without_columns_and_scalars_are_refused(operator: str) -> None:
    for x, said in ((torch.ones(3, 0), "at least one column"), (torch.tensor(1.0), "at least one axis")):
        (_, *others), named = CALLS[operator](Draw(0, torch.float32, "cpu"), 3, 5)
        with pytest.raises(ShapeError, match=said):
            packet(operator)(x, *others, **named)


def test_dtypes_that_differ_or_do_not_float_are_refused() -> None:
    x = torch.ones(2, 5)
    with pytest.raises(OperandError, match=r"'weight' is torch\.float16 on cpu, expected torch\.float32 on cpu, as x"):
        packet("linear_act")(x, torch.ones(3, 5).half(), None, "relu")
    with pytest.raises(OperandError, match=r"rmsnorm: dtype of 'x' is torch\.int64, expected a floating dtype"):
        packet("rmsnorm")(torch.ones(2, 5, dtype=torch.int64), None, 1e-6)
    with pytest.raises(OperandError, match=r"'mask' is torch\.int64 on cpu, expected bool or a floating dtype"):
        packet("softmax")(x, torch.ones(2, 5, dtype=torch.int64))


def test_words_outside_their_table_are_refused_with_those_in_it() -> None:
    x, weight = torch.ones(2, 5), torch.ones(3, 5)
    with pytest.raises(ChoiceError, match=r"'swish', expected one of none, relu, gelu, gelu_tanh, silu"):
        packet("linear_act")(x, weight, None, "swish")
    with pytest.raises(ChoiceError, match=r"'bf16', expected one of ieee, tf32x3, tf32"):
        packet("linear_act")(x, weight, None, "relu", input_precision="bf16")


@pytest.mark.parametrize(
    "text",
    [
        "rows=3 warps=4 programs=0 stages=1",
        "rows=0 warps=4 programs=0 stages=1",
        "rows=4 warps=4",
        "rows=4 warps=4 programs=0 stages=1 rows=4",
        "rows=4 warps=-4 programs=0 stages=1",
        "rows=4 warps=4 stages=0",
        "rows=131072 warps=4 programs=0 stages=1",
        "rows=٤ warps=4 programs=0 stages=1",
        "fast",
        "",
    ],
)
def test_a_configuration_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ChoiceError, match=r"rmsnorm: value of 'config' is .*expected one of rows=1\|2\|4\|.*, warps="):
        RowConfig.parse("rmsnorm", text)


def test_a_configuration_is_read_as_it_is_written() -> None:
    for config in (
        RowConfig(rows=4, warps=8, programs=0, stages=1),
        TileConfig(m=16, n=32, k=64, group=8, warps=4, stages=3, programs=0),
    ):
        assert type(config).parse("any", str(config)) == config


def test_tiles_are_held_against_registers_and_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small = configurations.Budget(name="small", processors=4, shared_bytes=48 << 10)
    monkeypatch.setattr(configurations, "budget", lambda device: small)
    device = torch.device("cpu")

    fits = TileConfig(m=64, n=64, k=32, group=8, warps=4, stages=2, programs=0)
    assert fits.fits(device, element_bytes=2)
    deep = TileConfig(m=64, n=64, k=128, group=8, warps=4, stages=3, programs=0)  # 96 KiB
    assert not deep.fits(device, element_bytes=2)
    broad = TileConfig(m=128, n=256, k=16, group=8, warps=4, stages=1, programs=0)  # 256 registers
    assert not broad.fits(device, element_bytes=1)
    stays = TileConfig(m=64, n=128, k=64, group=8, warps=4, stages=1, programs=1)  # 24 KiB and 16 of the result
    assert stays.fits(device, element_bytes=2)
    assert not stays.is_stored_in_halves(device, element_bytes=2)
    more = TileConfig(m=64, n=128, k=64, group=8, warps=4, stages=1, programs=2)  # twice 24 KiB and 8 of the result
    assert more.is_stored_in_halves(device, element_bytes=2)
    assert not more.fits(device, element_bytes=2)
    assert configurations.given_tile(str(fits), torch.float16, device) == fits
    with pytest.raises(
        BudgetError, match=r"stages=3 programs=0', expected one whose tiles fit into 49152 bytes .* of 'small'"
    ):
        configurations.given_tile("m=64 n=64 k=128 group=8 warps=4 stages=3 programs=0", torch.float16, device)
