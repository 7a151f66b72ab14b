"""Biases are added by what comes next where that is elementwise, and nowhere else."""

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.backends import separate_biases


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activated = nn.Linear(4, 8)
        self.added = nn.Linear(8, 8)
        self.softened = nn.Linear(8, 8)
        self.unbiased = nn.Linear(8, 8, bias=False)
        self.returned = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, 4) to (N, T, 4)."""
        x = nn.functional.gelu(self.activated(x))
        x = x + self.added(x)
        x = self.softened(x).softmax(-1)
        answer: Tensor = self.returned(self.unbiased(x).relu())
        return answer


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(1)
    return Layers().eval()


def test_those_are_found_whose_readers_are_elementwise(model: nn.Module) -> None:
    definition = compiler.compile(model, (torch.zeros(2, 3, 4),), backend="eager").definition

    found = [dict(definition.nodes[position].arguments)["weight"] for position in separate_biases.find(definition)]

    names = [definition.value_name(weight.value) for weight in found]  # type: ignore[union-attr]
    assert names == ["activated.weight", "added.weight"]


def test_the_call_is_that_of_the_operator(model: nn.Module) -> None:
    data, layer = torch.randn(2, 3, 4), model.activated
    assert isinstance(layer, nn.Linear)

    torch.testing.assert_close(separate_biases.linear(data, layer.weight, layer.bias), layer(data))
