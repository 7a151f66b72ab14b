"""Mutated programs are refused with a path, or are what they say: the short form of ``soak_mutations``."""

from collections import Counter
from contextlib import nullcontext
from random import Random
from re import escape

import pytest
import torch

from compiler.arguments import require_sense
from tests.compiler.mutations import judge, mutate, victims

SEEDS = 400


def test_what_is_not_mutated_is_accepted() -> None:
    assert [judge(body) for body in victims()] == [None] * len(victims())


@pytest.mark.parametrize("number", range(3))
def test_a_mutant_is_refused_with_a_path_or_keeps_its_word(number: int) -> None:
    body = victims()[number]

    paths = Counter(judge(mutate(body, Random(seed))) for seed in range(SEEDS))

    named = {path for path in paths if path is not None}
    assert all(path.startswith(("definition", "targets", "passes", "figures", "program", "header")) for path in named)
    assert len(named) > 50
    assert 0 < paths[None] < SEEDS / 2


@pytest.mark.parametrize(
    ("number", "seed", "what"),
    [
        (0, 4542, "a stride of 2⁶³ - 1"),
        (0, 83344, "the same of the other axis"),
        (0, 64114, "a negative padding"),
        (1, 183, "rows looked up by float64"),
        (1, 67213, "rows looked up by bool"),
        (2, 1584, "places looked up along no axis"),
        (2, 1746, "bits of float32"),
    ],
)
def test_what_only_tensors_would_have_refused_is_refused_beforehand(number: int, seed: int, what: str) -> None:
    path = judge(mutate(victims()[number], Random(seed)))

    assert path is not None, what
    assert path.startswith("definition.nodes["), what


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("float32", 3.4e38, True),
        ("float32", 1e300, False),
        ("float16", 65520.0, False),
        ("float32", float("inf"), True),
        ("float32", float("nan"), True),
        ("int8", -128, True),
        ("int8", 128, False),
        ("int64", float("nan"), False),
        ("bool", 7, True),
    ],
)
def test_a_tensor_is_filled_with_what_its_type_holds(dtype: str, value: float, fits: bool) -> None:
    given = {"self": torch.empty(1, device="meta"), "size": [1], "fill_value": value, "dtype": dtype}

    with nullcontext() if fits else pytest.raises(ValueError, match=escape(f"{value} in torch.{dtype}")):
        require_sense("aten.new_full.default", given)


def test_without_a_type_a_number_has_to_fit_torchs_default() -> None:
    require_sense("aten.full.default", {"size": [1], "fill_value": 2})

    with pytest.raises(ValueError, match=r"in torch\.float32"):
        require_sense("aten.full.default", {"size": [1], "fill_value": 1e300})
