"""What folding a batch norm leaves: formulas, layouts, the graph it was given. What is refused stands in families."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import compiler
from compiler.passes import Reason


def compiled(model: nn.Module, *inputs: Tensor, dynamic: object = None) -> compiler.Program:
    return compiler.compile(model, inputs, dynamic=dynamic, backend="eager")


def refusals(program: compiler.Program) -> list[Reason]:
    (fold,) = [entry for entry in program.report.passes if entry.name == "fold_batchnorm"]
    return [refusal.reason for refusal in fold.refusals]


def operators(program: compiler.Program) -> list[str]:
    return [node.operator for node in program.definition.nodes]


def test_every_pair_of_a_residual_network_is_folded(eager_program: compiler.Program) -> None:
    names = operators(eager_program)

    assert eager_program.report.count("fold_batchnorm") == 5
    assert refusals(eager_program) == []
    assert not [name for name in names if "batch_norm" in name]
    assert names.count("aten.conv2d.default") == 5


def test_the_folded_weight_is_a_formula_over_checkpoint_tensors(eager_program: compiler.Program) -> None:
    formulas = {constant.name: str(constant.formula) for constant in eager_program.constants}

    assert formulas["block1.conv1.weight.folded"] == (
        "block1.conv1.weight * reshape(block1.bn1.weight * rsqrt(block1.bn1.running_var + 1e-05), [8, 1, 1, 1])"
    )
    assert formulas["block1.conv1.weight.folded_bias"] == (
        "block1.bn1.bias - (block1.bn1.running_mean * (block1.bn1.weight * rsqrt(block1.bn1.running_var + 1e-05)))"
    )
    assert formulas["head.weight"] == "head.weight"


def test_linear_and_batch_norm_fold(randomised: Callable[..., nn.Module]) -> None:
    model = randomised(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU()))

    program = compiled(model, torch.randn(3, 6))

    assert operators(program) == ["aten.linear.default", "aten.relu.default"]


def test_a_padding_given_as_text_folds(randomised: Callable[..., nn.Module]) -> None:
    model = randomised(nn.Sequential(nn.Conv2d(2, 4, 3, padding="same"), nn.BatchNorm2d(4)))

    assert compiled(model, torch.randn(2, 2, 5, 5)).report.count("fold_batchnorm") == 1


def test_channels_last_weights_keep_their_layout(randomised: Callable[..., nn.Module]) -> None:
    model = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))).to(memory_format=torch.channels_last)

    program = compiled(model, torch.randn(2, 3, 6, 6))

    assert {constant.name: constant.strides for constant in program.constants}["0.weight.folded"] == (27, 1, 9, 3)


def test_folding_twice_is_folding_once(residual_net: Callable[..., nn.Module], images: Tensor) -> None:
    from compiler.capture import capture
    from compiler.passes import run_passes

    once, _ = run_passes(capture(residual_net(), (images[:2],)))
    twice, reports = run_passes(once)

    assert {report.name: len(report.changes) for report in reports} == dict.fromkeys((each.name for each in reports), 0)
    assert sorted(twice.constants) == sorted(once.constants)


def test_a_pass_leaves_the_graph_it_was_given_alone(residual_net: Callable[..., nn.Module], images: Tensor) -> None:
    from compiler.capture import capture
    from compiler.passes import run_passes

    graph = capture(residual_net(), (images[:2],))
    before, constants = str(graph.fx), dict(graph.constants)
    run_passes(graph)

    assert str(graph.fx) == before
    assert graph.constants == constants


def test_a_norm_shared_by_two_convolutions_folds_into_both(randomised: Callable[..., nn.Module]) -> None:
    class SharedNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.bn = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(self.a(x)) + self.bn(self.b(x))

    program = compiled(randomised(SharedNorm()), torch.randn(2, 3, 4, 4))

    assert program.report.count("fold_batchnorm") == 2


def test_half_precision_folds_in_float64_and_rounds_once(randomised: Callable[..., nn.Module]) -> None:
    model = randomised(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))).to(torch.bfloat16)
    program = compiled(model, torch.randn(2, 3, 6, 6, dtype=torch.bfloat16))
    memory = program.allocate()

    program.evaluate(model.state_dict(), memory)

    conv, norm = model[0], model[1]
    scale = norm.weight.double() * (norm.running_var.double() + norm.eps).rsqrt()
    expected = (conv.weight.double() * scale.reshape(4, 1, 1, 1)).to(torch.bfloat16)
    assert torch.equal(memory["0.weight.folded"], expected)
