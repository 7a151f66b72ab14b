"""Batch norms fold where that is legal, are left alone with a reason where it is not, and the answer never changes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

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


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("groups", "bias", "affine"), [(1, True, True), (2, False, True), (4, True, False), (4, False, False)]
)
def test_convolutions_of_any_rank_groups_and_bias_fold(
    randomised: Callable[..., nn.Module], rank: int, groups: int, bias: bool, affine: bool
) -> None:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1](4, 8, 3, padding=1, groups=groups, bias=bias)
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1](8, affine=affine)
    model = randomised(nn.Sequential(conv, norm))

    program = compiled(model, torch.randn(2, 4, *(5,) * rank))

    assert program.report.count("fold_batchnorm") == 1
    # A channels-last answer is made row-major again: outputs have the layout that the model gives them.
    assert operators(program)[1:] in ([], ["aten.clone.default"])


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("groups", "bias", "affine"), [(1, True, True), (1, False, False), (2, False, True), (4, True, False)]
)
def test_transposed_convolutions_of_any_rank_groups_and_bias_fold(
    randomised: Callable[..., nn.Module], rank: int, groups: int, bias: bool, affine: bool
) -> None:
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[rank - 1]
    conv = kind(4, 8, 3, stride=2, padding=1, output_padding=1, groups=groups, bias=bias)
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1](8, affine=affine)
    model = randomised(nn.Sequential(conv, norm))

    program = compiled(model, torch.randn(2, 4, *(5,) * rank))

    assert program.report.count("fold_batchnorm") == 1
    assert len(operators(program)) == 1


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


class SharedConv(nn.Module):
    """One convolution called twice, normalised on one path only: fuse() of torch.fx gets this wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) + self.conv(x * 2)


class OtherUse(SharedConv):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.bn(y) + y


class ComputedWeight(SharedConv):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(functional.conv2d(x, self.conv.weight.sin(), padding=1))


class ComputedStatistics(SharedConv):
    def forward(self, x: Tensor) -> Tensor:
        norm = self.bn
        return functional.batch_norm(self.conv(x), norm.running_mean.sin(), norm.running_var, norm.weight, norm.bias)


class WrittenBetween(SharedConv):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y.add_(1.0)
        return self.bn(y)


class NormFirst(SharedConv):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.bn(x))


class Unbatched(SharedConv):
    """A convolution without a batch axis: the norm's axis 1 is its height, which also has three elements."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x[0])
        return functional.batch_norm(y, self.bn.running_mean, self.bn.running_var, self.bn.weight, self.bn.bias)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (SharedConv(), Reason.SHARED_WEIGHT),
        (OtherUse(), Reason.OTHER_USE),
        (ComputedWeight(), Reason.WEIGHT_NOT_CONSTANT),
        (ComputedStatistics(), Reason.STATISTICS_NOT_CONSTANT),
        (WrittenBetween(), Reason.UNSUPPORTED_PRODUCER),
        (NormFirst(), Reason.UNSUPPORTED_PRODUCER),
        (Unbatched(), Reason.CHANNEL_AXIS),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), Reason.BATCH_STATISTICS),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm2d(3)), Reason.CHANNEL_AXIS),
    ],
    ids=lambda value: str(value) if isinstance(value, Reason) else type(value).__name__,
)
def test_an_illegal_fold_is_refused_and_the_answer_is_right(
    randomised: Callable[..., nn.Module], model: nn.Module, reason: Reason
) -> None:
    x = torch.randn(2, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    model = randomised(model)

    program = compiled(model, x)

    assert refusals(program) == [reason]
    assert program.report.count("fold_batchnorm") == 0
    torch.testing.assert_close(program.bind(model.state_dict())(x)[0], model(x), rtol=1e-4, atol=1e-4)


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
