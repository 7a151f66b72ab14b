"""A formula computes in float64, copies bits when it is an identity, and reads as mathematics."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compiler.formula import Formula, compute

a, b, c = (Formula.tensor(name) for name in "abc")


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (a, "a"),
        (Formula.literal("a"), "literal[a]"),
        (a + b * c, "a + (b * c)"),
        ((a + b) * c, "(a + b) * c"),
        (-(a - b), "negate(a - b)"),
        ((a + 1e-5).rsqrt(), "rsqrt(a + 1e-05)"),
        ((a * b).reshape((2, 1)) * c, "reshape(a * b, [2, 1]) * c"),
        (a * 0.5 / b.sqrt(), "(a * 0.5) / sqrt(b)"),
        ((a * b.exp()).sum((0, 2)), "sum(a * exp(b), [0, 2])"),
        (a.permute((1, 0)).narrow(0, 2, 3), "narrow(permute(a, [1, 0]), 0, 2, 3)"),
        (Formula.cat([a, b + c], 1), "cat([a, b + c], 1)"),
    ],
)
def test_a_formula_reads_as_mathematics(formula: Formula, text: str) -> None:
    assert str(formula) == text


def test_a_formula_names_what_it_reads_once() -> None:
    formula = (b * a + Formula.literal("z")) * b

    assert formula.tensors == ("a", "b")
    assert formula.literals == ("z",)
    assert not formula.is_identity


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3))
def test_a_formula_computes_what_torch_computes_in_float64(values: list[float]) -> None:
    leaves = {
        ("tensor", name): torch.tensor([value], dtype=torch.float32) for name, value in zip("abc", values, strict=True)
    }
    x, y, z = (leaf.double() for leaf in leaves.values())

    found = compute((a - b) * (c * c + 0.5).rsqrt() + -a, leaves)

    assert found.dtype == torch.float64
    assert torch.equal(found, (x - y) * (z * z + 0.5).rsqrt() + -x)


def test_sums_quotients_and_moves_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, z = (torch.randn(3, 4, generator=generator).abs() for _ in "abc")
    leaves = {("tensor", name): value for name, value in zip("abc", (x, y, z), strict=True)}
    formula = (Formula.cat([a / b.sqrt(), c.exp() * 0.5], 0).permute((1, 0)).narrow(1, 1, 4) + 2.0).sum((1,))

    found = compute(formula, leaves)

    expected = torch.cat([x.double() / y.double().sqrt(), z.double().exp() * 0.5]).t()[:, 1:5] + 2.0
    assert torch.equal(found, expected.sum(1))


def test_a_formula_that_only_moves_elements_copies_bits_of_any_dtype() -> None:
    bits = torch.tensor([[0x7FA00001, -0x80000000], [1, 2]], dtype=torch.int32)
    leaves = {("tensor", "a"): bits.view(torch.float32), ("tensor", "b"): bits.view(torch.float32) * 0}
    moves = Formula.cat([a.permute((1, 0)), b.narrow(0, 1, 1)], 0).reshape((6,))

    found = compute(moves, leaves)

    assert moves.moves_only
    assert found.dtype == torch.float32
    assert torch.equal(found[:4].view(torch.int32), bits.t().reshape(-1))
    assert not (moves + 0.0).moves_only
