"""A program survives the disk unchanged, is named by its graph, and is rebuilt from protobuf alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler import encode


def test_a_program_comes_back_as_it_was_saved(eager_program: compiler.Program, tmp_path: Path) -> None:
    folder = eager_program.save(tmp_path / "program")

    loaded = compiler.load(folder)

    assert loaded == eager_program
    assert loaded.digest == eager_program.digest
    assert loaded.report == eager_program.report
    assert [path.name for path in tmp_path.iterdir()] == ["program"]


def test_the_rebuilt_graph_answers_bit_for_bit(
    eager_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor, tmp_path: Path
) -> None:
    model = residual_net(4)

    rebuilt = compiler.load(eager_program.save(tmp_path / "program")).bind(model.state_dict())

    assert torch.equal(rebuilt(images)[0], eager_program.bind(model.state_dict())(images)[0])
    torch.testing.assert_close(rebuilt(images)[0], model(images), rtol=1e-4, atol=1e-5)


def test_a_folder_in_use_is_not_written_to(eager_program: compiler.Program, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")

    with pytest.raises(FileExistsError, match="not empty"):
        eager_program.save(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_digest_names_the_graph_and_not_the_weights(
    eager_program: compiler.Program, residual_net: Callable[..., nn.Module], images: Tensor
) -> None:
    batch = compiler.Dim(name="batch", max=16)

    same = compiler.compile(residual_net(9), (images[:3],), dynamic={"x": {0: batch}}, backend="eager")
    longer = compiler.compile(
        residual_net(9), (images[:3],), dynamic={"x": {0: replace(batch, max=32)}}, backend="eager"
    )

    assert same.digest == eager_program.digest
    assert longer.digest != eager_program.digest
    assert eager_program.digest.startswith("sha256:")


def test_a_literal_is_part_of_the_digest(eager_program: compiler.Program) -> None:
    literals = list(eager_program.definition.literals)
    literals[0] = replace(literals[0], data=bytes(len(literals[0].data)))

    assert encode.digest(replace(eager_program.definition, literals=tuple(literals))) != eager_program.digest


def test_a_small_program_reads_line_by_line() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval()
    program = compiler.compile(
        model, (torch.randn(2, 3),), dynamic={"input": {0: compiler.Dim(name="batch", max=4)}}, backend="eager"
    )

    assert program.text() == (
        "dim batch = 1..4\n"
        "input input: float32[batch, 3]\n"
        "requires 0.bias: float32[2]\n"
        "requires 0.weight: float32[2, 3]\n"
        "constant 0.bias: float32[2] strides [1] = 0.bias\n"
        "constant 0.weight: float32[2, 3] strides [3, 1] = 0.weight\n"
        "%0 = aten.linear.default(input=input, weight=0.weight, bias=0.bias) @cpu|cuda row_major request inline\n"
        "%1 = aten.relu.default(self=%0) @cpu|cuda row_major request inline\n"
        "output output: float32[batch, 2] = %1\n"
    )


def test_the_drawing_has_an_edge_for_each_argument_and_escapes_names(eager_program: compiler.Program) -> None:
    inputs = (replace(eager_program.inputs[0], name='x"; evil'),)

    drawing = replace(eager_program, definition=replace(eager_program.definition, inputs=inputs)).dot()

    edges = sum(len(node.refs) for node in eager_program.definition.nodes) + len(eager_program.outputs)
    assert drawing.count(" -> ") == edges
    assert 'label="x\\"; evil"' in drawing


def test_nodes_say_where_when_and_how_they_run(eager_program: compiler.Program) -> None:
    nodes = eager_program.definition.nodes

    assert {node.phase for node in nodes} == {"request"}
    assert {node.sync_mode for node in nodes} == {"inline"}
    assert all("cpu" in node.device_set for node in nodes)
    assert {node.memory_layout for node in nodes} == {"none", "channels_last", "row_major"}


def test_what_depends_on_weights_alone_is_marked_constant() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight.sin()

    program = compiler.compile(Scaled().eval(), (torch.randn(2, 3),), backend="eager")

    assert [(node.operator, node.phase) for node in program.definition.nodes] == [
        ("aten.sin.default", "constant"),
        ("aten.mul.Tensor", "request"),
    ]


def test_a_copy_that_is_an_output_stays_a_copy() -> None:
    program = compiler.compile(nn.Dropout(0.5).eval(), (torch.randn(2, 3),), backend="eager")
    x = torch.randn(2, 3)

    (found,) = program.bind({})(x)

    assert torch.equal(found, x)
    assert found.data_ptr() != x.data_ptr()
