"""Mutated programs are refused with a path, or are what they say: the short form of ``soak_mutations``."""

from collections import Counter
from random import Random

import pytest

from tests.compiler.mutations import judge, mutate, victims

SEEDS = 400


def test_what_is_not_mutated_is_accepted() -> None:
    assert [judge(body) for body in victims()] == [None] * len(victims())


@pytest.mark.parametrize("number", range(2))
def test_a_mutant_is_refused_with_a_path_or_keeps_its_word(number: int) -> None:
    body = victims()[number]

    paths = Counter(judge(mutate(body, Random(seed))) for seed in range(SEEDS))

    named = {path for path in paths if path is not None}
    assert all(path.startswith(("definition", "targets", "passes", "figures", "program", "header")) for path in named)
    assert len(named) > 50
    assert 0 < paths[None] < SEEDS / 2


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (4542, "a stride of 2⁶³ - 1"),
        (83344, "the same of the other axis"),
        (64114, "a negative padding"),
        (183, "rows looked up by float64"),
        (67213, "rows looked up by bool"),
    ],
)
def test_what_only_tensors_would_have_refused_is_refused_beforehand(seed: int, what: str) -> None:
    bodies = victims()

    path = judge(mutate(bodies[seed % len(bodies)], Random(seed)))

    assert path is not None, what
    assert path.startswith("definition.nodes["), what
