"""Rows of attention that are masked whole: NaN where a model writes softmax out, and so in its program."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import compiler

LOWEST = torch.finfo(torch.float32).min
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
FIRST_ROW_MASKED = torch.ones(5, 5, dtype=torch.bool).tril(-1)


def _where(condition: Tensor, scores: Tensor, number: float) -> Tensor:
    return torch.where(condition, scores, torch.tensor(number))


# What is done to scores (rows, heads, 5, 5), with a bias (rows, 5) and a condition (rows, 5) of the request.
FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "added": lambda s, b, c: s + b[:, None, None, :],
    "added twice": lambda s, b, c: s + b[:, None, None, :] + b[:, None, :, None],
    "filled": lambda s, b, c: s.masked_fill(c[:, None, None, :], -torch.inf),
    "chosen": lambda s, b, c: _where(~c[:, None, None, :], s, -torch.inf),
    "filled with the lowest": lambda s, b, c: s.masked_fill(c[:, None, None, :], LOWEST),
    "the lowest and then infinity": lambda s, b, c: s.masked_fill(c[:, None, None, :], LOWEST).masked_fill(
        ~CAUSAL, -torch.inf
    ),
    "infinity and then the lowest": lambda s, b, c: s.masked_fill(~CAUSAL, -torch.inf).masked_fill(
        c[:, None, None, :], LOWEST
    ),
    "added and then the lowest": lambda s, b, c: (s + b[:, None, None, :]).masked_fill(~CAUSAL, LOWEST),
    "the lowest, doubled": lambda s, b, c: s.masked_fill(c[:, None, None, :], LOWEST) * 2.0,
    "causal": lambda s, b, c: s.masked_fill(~CAUSAL, -torch.inf),
    "a row masked in the code": lambda s, b, c: s.masked_fill(~FIRST_ROW_MASKED, -torch.inf),
}
NAMES = tuple(FORMS)


class _Attends(nn.Module):
    """Every form, on queries, keys and values of their own: nothing is shared between them."""

    def forward(self, x: Tensor, bias: Tensor, condition: Tensor) -> list[Tensor]:
        outputs = []
        for number, form in enumerate(FORMS.values()):
            q, k, v = (x * (0.3 + number + part) for part in range(3))
            outputs.append(form(q @ k.transpose(2, 3), bias, condition).softmax(-1) @ v)
        return outputs


@pytest.fixture(scope="module")
def program() -> compiler.Program:
    example = (torch.randn(3, 2, 5, 4), torch.zeros(3, 5), torch.zeros(3, 5, dtype=torch.bool))
    return compiler.compile(_Attends().eval(), example, backend="eager")


@pytest.fixture(scope="module")
def answers(program: compiler.Program) -> dict[str, tuple[Tensor, Tensor]]:
    """Form → (the program's, the model's) answers; of three requests one masks all, one some, and one nothing."""
    bias = torch.tensor([[-torch.inf] * 5, [-torch.inf, 0.5, -torch.inf, 0.0, -1.0], [0.0] * 5])
    inputs = (torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(1)), bias, bias.isinf())
    return dict(zip(NAMES, zip(program.bind({})(*inputs), _Attends()(*inputs), strict=True), strict=True))


def test_every_form_is_fused(program: compiler.Program) -> None:
    assert program.report.count("fuse_attention") == len(FORMS)


@pytest.mark.parametrize("form", NAMES)
def test_a_row_masked_whole_is_what_the_model_says(form: str, answers: dict[str, tuple[Tensor, Tensor]]) -> None:
    found, expected = answers[form]

    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_the_model_says_nan_of_some(answers: dict[str, tuple[Tensor, Tensor]]) -> None:
    empty = {form for form, (_, expected) in answers.items() if expected.isnan().any()}

    replaced = {"filled with the lowest", "the lowest and then infinity", "infinity and then the lowest"}
    assert empty == set(FORMS) - replaced - {"causal"}


def test_where_no_row_can_be_masked_whole_nothing_is_added(program: compiler.Program) -> None:
    choices = [node for node in program.definition.nodes if node.operator == "aten.where.self"]

    assert len(choices) == len(FORMS) - len({"filled with the lowest", "causal"})
