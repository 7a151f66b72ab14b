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
