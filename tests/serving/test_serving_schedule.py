"""The batching policy, as a function of values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.schedule import (
    BUCKETS,
    STALL_FLOOR_S,
    LatencyTable,
    Running,
    bucket_for,
    is_stalled,
    plan,
    predicted_wait_s,
    retry_after_s,
)


def table_of(costs: dict[int, float]) -> LatencyTable:
    table = LatencyTable(buckets=tuple(costs))
    for bucket, seconds in costs.items():
        for _ in range(200):  # long enough for the deviation to fade
            table = table.observed(bucket, seconds)
    return table


@pytest.mark.parametrize(("rows", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 8), (16, 16), (17, 32), (32, 32)])
def test_rows_go_into_the_smallest_bucket_that_holds_them(rows: int, bucket: int) -> None:
    assert bucket_for(rows, buckets=BUCKETS) == bucket


def test_nobody_waiting_means_no_batch() -> None:
    assert plan([], table=LatencyTable()) is None


@given(st.lists(st.integers(1, 32), min_size=1), st.dictionaries(st.sampled_from(BUCKETS), st.floats(0, 10)))
def test_a_batch_is_a_prefix_of_the_queue_that_fits_its_bucket(rows: list[int], costs: dict[int, float]) -> None:
    table = LatencyTable()
    for bucket, seconds in costs.items():
        table = table.observed(bucket, seconds)

    batch = plan(rows, table=table)

    assert batch is not None
    assert batch.requests >= 1
    assert batch.rows == sum(rows[: batch.requests])
    assert batch.bucket == bucket_for(batch.rows, buckets=BUCKETS)


def test_with_flat_costs_everybody_leaves_together() -> None:
    batch = plan([1] * 17, table=table_of(dict.fromkeys(BUCKETS, 0.004)))

    assert batch is not None
    assert (batch.requests, batch.bucket) == (17, 32)


def test_rows_leave_at_the_best_rate() -> None:
    batch = plan([1] * 17, table=table_of({1: 0.001, 16: 0.004, 32: 0.007}))

    assert batch is not None
    assert (batch.requests, batch.bucket) == (16, 16)


def test_the_predicted_wait_counts_the_running_batch_and_the_queue() -> None:
    table = table_of({4: 1.0, 8: 3.0})
    running = Running(bucket=8, started_s=10.0)

    assert predicted_wait_s(0, now_s=11.0, running=None, table=table) == 0
    assert predicted_wait_s(0, now_s=11.0, running=running, table=table) == pytest.approx(2.0)
    assert predicted_wait_s(19, now_s=11.0, running=running, table=table) == pytest.approx(2.0 + 2 * 3.0 + 1.0)
    assert predicted_wait_s(0, now_s=99.0, running=running, table=table) == 0


def test_the_table_learns_and_forgets() -> None:
    table = table_of({1: 1.0})

    for _ in range(100):
        table = table.observed(1, 3.0)

    assert table.predicted_s(1) == pytest.approx(3.0, rel=0.05)


def test_a_spread_makes_the_prediction_careful() -> None:
    table = LatencyTable()
    for turn in range(100):
        table = table.observed(1, 1.0 if turn % 2 else 3.0)

    assert table.predicted_s(1) > 3.0


@pytest.mark.parametrize(("wait_s", "seconds"), [(2.1, 1), (3.5, 2), (62.0, 60)])
def test_retry_after_is_when_the_wait_is_within_the_bound(wait_s: float, seconds: int) -> None:
    assert retry_after_s(wait_s, bound_s=2.0) == seconds


def test_a_batch_that_never_ends_is_a_stall() -> None:
    table = table_of({1: 0.001})
    running = Running(bucket=1, started_s=0.0)

    assert not is_stalled(None, now_s=1e9, table=table)
    assert not is_stalled(running, now_s=STALL_FLOOR_S, table=table)
    assert is_stalled(running, now_s=STALL_FLOOR_S + 0.1, table=table)
