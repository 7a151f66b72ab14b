"""A plan never lets two living values overlap, and its bound is one that no plan can pass."""

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import compiler
from compiler.memory_plan import ALIGNMENT_BYTES, Lifetime, lower_bound, place, plan_memory

LIFETIMES = st.lists(
    st.builds(
        lambda first, length, units: Lifetime(first=first, last=first + length, size_bytes=64 * units),
        st.integers(0, 12),
        st.integers(0, 6),
        st.integers(1, 9),
    ),
    max_size=14,
)


def top(lifetimes: list[Lifetime], offsets: tuple[int, ...]) -> int:
    return max((offset + at.size_bytes for offset, at in zip(offsets, lifetimes, strict=True)), default=0)


@given(LIFETIMES)
def test_what_meets_in_time_does_not_overlap(lifetimes: list[Lifetime]) -> None:
    offsets = place(lifetimes)

    for one in range(len(lifetimes)):
        for other in range(one):
            meet = lifetimes[one].first <= lifetimes[other].last and lifetimes[other].first <= lifetimes[one].last
            apart = (
                offsets[one] + lifetimes[one].size_bytes <= offsets[other]
                or offsets[other] + lifetimes[other].size_bytes <= offsets[one]
            )
            assert apart or not meet
    assert top(lifetimes, offsets) >= lower_bound(lifetimes)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=5))
def test_no_order_of_placing_passes_the_bound(drawn: list[tuple[int, int, int]]) -> None:
    lifetimes = [Lifetime(first=first, last=first + length, size_bytes=64 * units) for first, length, units in drawn]

    best = min(_first_fit(lifetimes, order) for order in permutations(range(len(lifetimes))))

    assert lower_bound(lifetimes) <= best <= top(lifetimes, place(lifetimes))


def _first_fit(lifetimes: list[Lifetime], order: tuple[int, ...]) -> int:
    """The arena when each is put, in this order, at the lowest offset that is free: one of the orders is optimal."""
    placed: list[tuple[int, int, Lifetime]] = []
    for index in order:
        one = lifetimes[index]
        start = 0
        for low, high, other in sorted(placed, key=lambda entry: entry[:2]):
            meet = one.first <= other.last and other.first <= one.last
            if meet and low < start + one.size_bytes and start < high:
                start = high
        placed.append((start, start + one.size_bytes, one))
    return max(high for _, high, _ in placed)


class Chain(nn.Module):
    """Five values of 4 KiB in a row, of which one is read through a view, and one is read again at the end."""

    def forward(self, x: Tensor) -> Tensor:
        first = x + 1.0
        second = first * 2.0
        third = second.t() - 3.0
        fourth = third.exp()
        return (fourth + first).sum()


def test_a_chain_takes_what_is_alive_at_once() -> None:
    program = compiler.compile(Chain().eval(), (torch.randn(32, 32),), backend="eager")

    plan = plan_memory(program.definition, {})

    assert len(plan.lifetimes) == 5
    assert plan.total_bytes == 5 * 4096
    assert plan.arena_bytes == plan.lower_bound_bytes == 3 * 4096
    assert all(offset % ALIGNMENT_BYTES == 0 for offset in plan.offsets)


def test_a_view_keeps_what_it_shows_alive() -> None:
    program = compiler.compile(Chain().eval(), (torch.randn(32, 32),), backend="eager")
    operators = [node.operator for node in program.definition.nodes]

    plan = plan_memory(program.definition, {})

    second = plan.lifetimes[1]
    assert operators[second.first] == "aten.mul.Tensor"
    assert operators[second.last] == "aten.sub.Tensor"
    assert second.last - second.first == 2


def test_outputs_and_constants_are_the_callers(eager_program: compiler.Program) -> None:
    nodes = eager_program.definition.nodes
    made_last = eager_program.outputs[0]

    plan = plan_memory(eager_program.definition, {"batch": 2})

    assert made_last.name == "output"
    assert all(lifetime.last < len(nodes) for lifetime in plan.lifetimes)
    assert len(nodes) - 1 not in {lifetime.first for lifetime in plan.lifetimes}


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_a_network_takes_little_more_than_its_bound(eager_program: compiler.Program, rows: int) -> None:
    plan = plan_memory(eager_program.definition, {"batch": rows})

    assert plan.lower_bound_bytes <= plan.arena_bytes <= 1.2 * plan.lower_bound_bytes
    assert plan.arena_bytes < plan.total_bytes / 2
