"""A graph for ONNX Runtime with every constant outside of it: right, swappable, or refused with a reason."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler import kernels
from compiler.backends import onnx as backend
from compiler.constants import offsets

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def program(residual_net: Callable[..., nn.Module], images: Tensor) -> compiler.Program:
    dynamic = {"x": {0: compiler.Dim(name="batch", max=16)}}
    return compiler.compile(residual_net(), (images[:1],), dynamic=dynamic, backend="onnx")


@pytest.fixture
def graph(program: compiler.Program) -> bytes:
    (target,) = program.targets
    return program.packages[target.path]


def test_it_was_verified_like_every_backend_and_is_the_eager_graph(
    program: compiler.Program, eager_program: compiler.Program
) -> None:
    assert {figure.backend for figure in program.report.figures} == {"eager", "onnx"}
    assert program.digest == eager_program.digest
    assert [(target.requirement, target.path) for target in program.targets] == [("any", "targets/onnx-any.onnx")]


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_answers_are_those_of_eager_to_one_in_ten_thousand(
    program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor, rows: int
) -> None:
    model = residual_net(3)

    found, expected = program.bind(model.state_dict())(images[:rows])[0], model(images[:rows]).detach()

    assert float((found - expected).abs().max()) <= 1e-4 * max(1.0, float(expected.abs().max()))


def test_no_constant_is_in_the_graph_and_each_has_its_place_in_the_arena(
    program: compiler.Program, graph: bytes
) -> None:
    model = onnx.ModelProto.FromString(graph)
    starts = offsets(program.constants)

    found = {
        tensor.doc_string: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in model.graph.initializer
    }

    assert found == {
        constant.name: {
            "location": "constants.bin",
            "offset": str(starts[constant.name]),
            "length": str(constant.size_bytes),
        }
        for constant in program.constants
    }
    assert not any(tensor.raw_data or tensor.float_data for tensor in model.graph.initializer)
    assert [value.name for value in model.graph.input] == ["x"]


def test_the_graph_names_no_file_of_the_machine_that_built_it(graph: bytes) -> None:
    assert b"site-packages" not in graph
    assert str(Path(__file__).parents[2]).encode() not in graph


def test_a_then_b_then_a_is_bit_exact(
    program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor
) -> None:
    first, second = residual_net(1).state_dict(), residual_net(2).state_dict()
    runner = program.bind(first)
    before = runner(images)[0].clone()

    program.rebind(second, runner)
    between = runner(images)[0].clone()
    program.rebind(first, runner)

    assert torch.equal(between, program.bind(second)(images)[0])
    assert torch.equal(runner(images)[0], before)


def test_a_program_from_disk_runs(
    program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor, tmp_path: Path
) -> None:
    state = residual_net(5).state_dict()

    loaded = compiler.load(program.save(tmp_path / "program"))

    assert loaded == program
    assert torch.equal(loaded.bind(state)(images)[0], program.bind(state)(images)[0])


class Fused(nn.Module):
    """Every one of our own operators, each with something of every kind of argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        own = torch.ops.treering
        x = own.linear_act(x, self.weight, self.gain, "gelu")
        above = x >= x.mean(-1, keepdim=True)
        x = own.softmax(x, above, scale=0.5) + own.layernorm_act(x, self.gain, None, 1e-2, "silu")
        normal, total = own.add_layernorm.with_sum(x, x * 2, None, self.gain, 1e-2)
        return own.add_layernorm(normal, own.rmsnorm(total, self.gain, 1e-2), self.gain, self.gain, 1e-2)


def test_fused_operators_are_written_as_what_they_are_made_of() -> None:
    kernels.register()
    torch.manual_seed(0)
    model, x = Fused().eval(), torch.randn(5, 6)

    program = compiler.compile(model, (x,), backend="onnx")

    found, expected = program.bind(model.state_dict())(x)[0], model(x).detach()
    assert float((found - expected).abs().max()) <= 1e-5


def test_an_operator_that_onnx_lacks_is_refused_by_name_and_place() -> None:
    pools = nn.Sequential(nn.ReLU(), nn.AdaptiveMaxPool2d(4))  # of 6: places of unequal size

    with pytest.raises(compiler.BackendRefusedError, match=r"no form for 'aten.adaptive_max_pool2d.default' \(%1 of"):
        compiler.compile(pools.eval(), (torch.randn(2, 3, 6, 6),), backend="onnx")


def test_an_element_type_that_numpy_lacks_is_refused_before_any_work() -> None:
    with pytest.raises(compiler.BackendRefusedError, match=r"is bfloat16, which does not pass through NumPy"):
        compiler.compile(nn.Linear(3, 2).bfloat16().eval(), (torch.randn(2, 3).bfloat16(),), backend="onnx")


def test_without_the_extra_it_is_refused_with_how_to_get_it(
    eager_program: compiler.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None if name == "onnxscript" else object())

    with pytest.raises(compiler.BackendRefusedError, match=r"onnxscript is not installed.*pip install '\.\[onnx\]'"):
        backend.BACKEND.refuse(eager_program.definition, requirement="any")


def test_a_program_without_a_graph_is_refused_with_what_to_do(eager_program: compiler.Program) -> None:
    with pytest.raises(compiler.BackendRefusedError, match=r"holds no graph for it.*backend='onnx'"):
        eager_program.load_runner(eager_program.allocate(), backend="onnx")
