"""Each variant of each family is fused as often as it should be, or refused for the right reason, and answers right."""

import pytest

from compiler.passes import Reason
from tests.compiler.families.case import Case
from tests.compiler.families.catalogue import ALL, CASES
from tests.compiler.families.judgement import GROUP, ROWS, compiled, judge, rows_of

DYNAMIC = CASES[5::23]


def test_there_are_two_hundred_of_them() -> None:
    assert len(CASES) >= 200
    assert len(ALL) >= 300


def test_every_reason_that_a_pass_gives_has_a_variant() -> None:
    given = {reason for case in CASES for _, reason in case.refused}

    assert given == set(Reason) - {Reason.CONTROL_FLOW}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_variant_is_fused_or_refused_and_right(case: Case) -> None:
    start = CASES.index(case) // GROUP * GROUP
    group = CASES[start : start + GROUP]
    judge(case, compiled(group, dynamic=False), place=group.index(case), rows=(rows_of(case),))


@pytest.mark.parametrize("case", DYNAMIC, ids=lambda case: case.name)
def test_so_it_is_with_a_batch_of_any_size(case: Case) -> None:
    judge(case, compiled(DYNAMIC, dynamic=True), place=DYNAMIC.index(case), rows=ROWS)
