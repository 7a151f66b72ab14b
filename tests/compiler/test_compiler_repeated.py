"""What is computed twice is computed once, unless two outputs would come to share memory; the answer never changes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler
from compiler.passes import Reason


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def compiled(function: Callable[[Tensor], object]) -> compiler.Program:
    return compiler.compile(Function(function).eval(), (torch.randn(2, 6),), backend="eager")


def count(program: compiler.Program) -> int:
    return len(program.definition.nodes)


def refusals(program: compiler.Program) -> list[Reason]:
    (merge,) = [entry for entry in program.report.passes if entry.name == "merge_repeated"]
    return [refusal.reason for refusal in merge.refusals]


def test_an_operator_on_the_same_arguments_is_computed_once() -> None:
    program = compiled(lambda x: functional.gelu(x) * 2 + functional.gelu(x) * 2)

    assert program.report.count("merge_repeated") == 2
    assert [node.operator for node in program.definition.nodes] == [
        "aten.gelu.default",
        "aten.mul.Tensor",
        "aten.add.Tensor",
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.gelu(x) + functional.gelu(x, approximate="tanh"),
        lambda x: (x + 1) * (x + 1.5),
        lambda x: torch.sum(x, 1) * torch.sum(x, 1, keepdim=True),
        lambda x: (x * 0.0) / (x * -0.0),
        lambda x: (x - x.flip(0)) + (x.flip(0) - x) * 3,
    ],
)
def test_other_arguments_are_another_value(function: Callable[[Tensor], Tensor]) -> None:
    program = compiled(function)

    before = [node.operator for node in program.definition.nodes]
    assert program.report.count("merge_repeated") == (1 if before.count("aten.flip.default") else 0)


def test_two_outputs_do_not_become_one_tensor() -> None:
    program = compiled(lambda x: (torch.relu(x), torch.relu(x)))
    x = torch.randn(2, 6)

    first, second = program.bind({})(x)

    assert refusals(program) == [Reason.ALIAS]
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, second)


def test_nor_do_two_views() -> None:
    program = compiled(lambda x: (torch.relu(x).view(12), torch.relu(x).view(3, 4)))

    assert refusals(program) == [Reason.ALIAS]
    assert program.report.count("merge_repeated") == 0


def test_an_output_may_be_read_inside_too() -> None:
    program = compiled(lambda x: (torch.relu(x), torch.relu(x) + 1))

    assert program.report.count("merge_repeated") == 1
    assert refusals(program) == []


def test_merging_again_changes_nothing() -> None:
    once = compiled(lambda x: torch.exp(x + 1) + torch.exp(x + 1) + torch.exp(x + 1))

    assert once.report.count("merge_repeated") == 4
    assert count(once) == 4
