"""Weights of 2-D convolutions lie channels-last, values follow, and outputs look as they did."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler


def compiled(model: nn.Module, *inputs: Tensor) -> compiler.Program:
    return compiler.compile(model.eval(), inputs, backend="eager")


def strides(program: compiler.Program, name: str) -> tuple[int, ...]:
    return next(constant.strides for constant in program.constants if constant.name == name)


def test_a_weight_and_what_follows_it_are_channels_last_and_the_output_is_not(
    randomised: Callable[..., nn.Module],
) -> None:
    model = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3)))

    program = compiled(model, torch.randn(2, 3, 8, 8))

    assert strides(program, "0.weight.folded") == (27, 1, 9, 3)
    assert [(node.operator, node.memory_layout) for node in program.definition.nodes] == [
        ("aten.conv2d.default", "channels_last"),
        ("aten.relu.default", "channels_last"),
        ("aten.conv2d.default", "channels_last"),
        ("aten.clone.default", "row_major"),
    ]
    assert program.bind(model.state_dict())(torch.randn(2, 3, 8, 8))[0].is_contiguous()


def test_a_checkpoint_in_any_layout_gives_the_same_constants(randomised: Callable[..., nn.Module]) -> None:
    model = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    program = compiled(model, torch.randn(2, 3, 8, 8))
    rows, last = program.allocate(), program.allocate()

    program.evaluate(model.state_dict(), rows)
    program.evaluate(model.to(memory_format=torch.channels_last).state_dict(), last)  # type: ignore[call-overload]

    assert all(torch.equal(rows[name], last[name]) for name in rows)


@pytest.mark.parametrize(
    ("model", "shape", "name"),
    [
        (nn.Conv1d(4, 4, 3), (2, 4, 9), "weight"),
        (nn.Conv3d(2, 4, 3), (2, 2, 5, 5, 5), "weight"),
        (nn.ConvTranspose2d(4, 4, 3), (2, 4, 5, 5), "weight"),
    ],
)
def test_other_convolutions_stay_row_major(model: nn.Module, shape: tuple[int, ...], name: str) -> None:
    program = compiled(model, torch.randn(shape))

    (weight,) = (constant for constant in program.constants if constant.name == name)
    assert weight.strides == torch.empty(weight.shape).stride()


def test_a_weight_with_another_reader_is_refused_and_stays() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return functional.conv2d(x, self.weight) + (x.sum() * self.weight).sum()  # of weights alone: a formula

    program = compiled(Reads(), torch.randn(2, 3, 8, 8))

    (report,) = (entry for entry in program.report.passes if entry.name == "lay_out")
    assert [(refusal.site, refusal.reason.value) for refusal in report.refusals] == [("weight", "shared_weight")]
    assert strides(program, "weight") == (27, 9, 3, 1)


def test_a_view_between_convolution_and_head_still_holds() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.head = nn.Linear(4 * 36, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.head(y.view(y.shape[0], -1))

    model = Views().eval()
    x = torch.randn(2, 3, 8, 8)

    torch.testing.assert_close(compiled(model, x).bind(model.state_dict())(x)[0], model(x))
