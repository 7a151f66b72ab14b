"""A graph for ONNX Runtime whose constants lie in one file: swapped, rewritten in part, and opened by others."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler
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


def bound(program: compiler.Program, model: nn.Module) -> dict[str, Tensor]:
    memory = program.allocate()
    program.evaluate(model.state_dict(), memory)
    return memory


def answer(folder: Path, x: Tensor) -> Tensor:
    """What ONNX Runtime makes of the files alone."""
    session = onnxruntime.InferenceSession(folder / backend.GRAPH_FILE, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["output"], {"x": x.numpy()})[0])


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


def test_the_files_answer_without_this_project(
    program: compiler.Program, graph: bytes, residual_net: Callable[..., nn.Module], images: Tensor, tmp_path: Path
) -> None:
    memory = bound(program, residual_net(4))

    folder = backend.write_files(graph, program.constants, memory, tmp_path / "web")

    assert sorted(path.name for path in folder.iterdir()) == ["constants.bin", "model.onnx"]
    assert torch.equal(answer(folder, images), program.load_runner(memory)(images)[0])


def test_new_weights_rewrite_the_ranges_that_changed_and_no_other_byte(
    program: compiler.Program, graph: bytes, residual_net: Callable[..., nn.Module], images: Tensor, tmp_path: Path
) -> None:
    memory = bound(program, residual_net(4))
    folder = backend.write_files(graph, program.constants, memory, tmp_path / "web")
    before = (folder / "constants.bin").read_bytes()
    state = residual_net(4).state_dict()
    state["block1.bn1.weight"] = state["block1.bn1.weight"] * 2

    names = program.evaluate(state, memory, changed=["block1.bn1.weight"])
    backend.update_files(program.constants, memory, folder, names=names)

    after = (folder / "constants.bin").read_bytes()
    starts = offsets(program.constants)
    sizes = {constant.name: constant.size_bytes for constant in program.constants}
    within = {at for name in names for at in range(starts[name], starts[name] + sizes[name])}
    differing = {at for at in range(len(before)) if before[at] != after[at]}
    assert len(before) == len(after) == program.arena_bytes
    assert names == ("block1.conv1.weight.folded", "block1.conv1.weight.folded_bias")
    assert differing
    assert differing <= within
    assert torch.equal(answer(folder, images), program.bind(state)(images)[0])


def test_a_program_from_disk_runs(
    program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor, tmp_path: Path
) -> None:
    state = residual_net(5).state_dict()

    loaded = compiler.load(program.save(tmp_path / "program"))

    assert loaded == program
    assert torch.equal(loaded.bind(state)(images)[0], program.bind(state)(images)[0])


class Encoder(nn.Module):
    """Words, attention with a mask, a norm and gelu."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.wide = nn.Linear(8, 12)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.table(ids))
        heads = x.unflatten(2, (2, 4)).transpose(1, 2)
        bias = (ids == 0)[:, None, None, :].to(x.dtype) * -1e4
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)
        return functional.gelu(self.wide(mixed.transpose(1, 2).flatten(2)))


def test_attention_over_words_is_written_too() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 11, (3, 5))
    dynamic = {"ids": {0: compiler.Dim(name="rows", max=8)}}

    program = compiler.compile(Encoder().eval(), (ids,), dynamic=dynamic, backend="onnx")

    assert {figure.backend for figure in program.report.figures} == {"eager", "onnx"}


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
