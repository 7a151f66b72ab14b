"""Programs for a GPU are made of our operators where that is legal; others, and all for CPUs, are left as they are."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler
from compiler.passes import Reason

HIDDEN = 24


class Block(nn.Module):
    """Post-norm: the sum that is normalised has no other reader."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(HIDDEN, 40), nn.Linear(40, HIDDEN, bias=False)
        self.norm, self.activation = nn.LayerNorm(HIDDEN), activation

    def forward(self, x: Tensor) -> Tensor:
        normalised: Tensor = self.norm(x + self.narrow(self.activation(self.widen(x))))
        return normalised


class PreNorm(nn.Module):
    """Pre-norm: the sum goes on beside its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        total = x + functional.silu(self.first(x))
        return self.second(total) * 2 + total


class Plain(nn.Module):
    """A function with a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(HIDDEN, HIDDEN)


class ReadTwice(Plain):
    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.layer(x)
        return functional.relu(product) + product


class Wide(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(self.layer(x), (3, HIDDEN))


def made(model: nn.Module, *, dtype: torch.dtype = torch.bfloat16, target: str = "cuda") -> compiler.Program:
    torch.manual_seed(0)
    model = model.eval().to(dtype)
    targets = (target,) if target else ()
    rows = compiler.Dim(name="rows", max=6)
    x = torch.randn(2, 3, HIDDEN, dtype=dtype)
    return compiler.compile(model, (x,), dynamic={"x": {0: rows}}, backend="eager", targets=targets)


def fused(program: compiler.Program) -> dict[str, int]:
    operators = Counter(node.operator for node in program.definition.nodes)
    return {name: count for name, count in operators.items() if name.startswith("treering.")}


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU()], ids=str)
def test_a_block_becomes_two_of_our_operators_and_a_product(activation: nn.Module) -> None:
    program = made(Block(activation))

    assert fused(program) == {"treering.linear_act.default": 1, "treering.add_layernorm.default": 1}
    assert len(program.definition.nodes) == 3


def test_a_sum_that_goes_on_is_a_second_result() -> None:
    program = made(PreNorm(), dtype=torch.float32)

    assert fused(program) == {"treering.layernorm_act.default": 1, "treering.add_layernorm.with_sum": 1}


@pytest.mark.parametrize(
    ("model", "dtype", "reason"),
    [
        (ReadTwice(), torch.bfloat16, Reason.OTHER_USE),
        (Block(nn.GELU()), torch.float32, Reason.UNSUPPORTED_DTYPE),
        (Wide(), torch.float32, Reason.SHAPE),
    ],
    ids=["a product read twice", "a product in float32", "a norm over two axes"],
)
def test_what_is_left_alone_says_why(model: nn.Module, dtype: torch.dtype, reason: Reason) -> None:
    program = made(model, dtype=dtype)

    refusals = [refusal.reason for report in program.report.passes for refusal in report.refusals]
    assert refusals == [reason]
    assert "treering.linear_act.default" not in fused(program)


def test_programs_for_cpus_hold_none_of_them() -> None:
    assert fused(made(Block(nn.GELU()), target="")) == {}
