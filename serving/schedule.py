"""When a batch leaves and who is let in: pure functions of values, with the clock passed in.

A batch takes whole requests in the order of arrival and is padded to a *bucket*, one of a few fixed row counts, because
a row's bits depend on the size of the batch it is computed in and on nothing else: at a given bucket an answer is the
offline answer, bit for bit. ``LatencyTable`` holds what each bucket costs, learned while running. A request is let in
when the wait that the table predicts is within the bound.

The loop that acts on these decisions is ``batcher``.

Source: Clockwork (Gujarati et al., OSDI 2020) for admission by predicted latency; measured on a 2-core machine: rows in
batches of 2, 3, 7 and 16 differ bitwise from the single row, at one fixed size they do not depend on their neighbours.
"""

import bisect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

BUCKETS = (1, 2, 4, 8, 16, 32)
SMOOTHING = 0.125  # weight of a new observation, as in TCP's round-trip estimate (RFC 6298)
DEVIATIONS = 2.0  # how many mean deviations above the mean a prediction stands
STALL_FACTOR = 50.0  # a batch this many times over its prediction makes the worker not ready
STALL_FLOOR_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds of a batch: a moving mean and a moving mean deviation."""

    mean_s: float
    deviation_s: float

    @property
    def predicted_s(self) -> float:
        """What a batch will hardly exceed."""
        return self.mean_s + DEVIATIONS * self.deviation_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTable:
    """What a batch of each bucket costs; a new table for each observation."""

    buckets: tuple[int, ...] = BUCKETS
    latencies: Mapping[int, Latency] = field(default_factory=dict)

    def observed(self, bucket: int, seconds: float) -> "LatencyTable":
        """Return the table after a batch of ``bucket`` rows took ``seconds``."""
        known = self.latencies.get(bucket)
        if known is None:
            latency = Latency(mean_s=seconds, deviation_s=seconds / 2)
        else:
            latency = Latency(
                mean_s=known.mean_s + SMOOTHING * (seconds - known.mean_s),
                deviation_s=known.deviation_s + SMOOTHING * (abs(seconds - known.mean_s) - known.deviation_s),
            )
        return replace(self, latencies={**self.latencies, bucket: latency})

    def predicted_s(self, bucket: int) -> float:
        """Predict a batch's seconds; a bucket never seen counts as nothing, so warm each before serving."""
        latency = self.latencies.get(bucket)
        return 0.0 if latency is None else latency.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The next batch: the first ``requests`` of the queue, ``rows`` rows in all, padded to ``bucket``."""

    requests: int
    rows: int
    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A batch that the model is computing."""

    bucket: int
    started_s: float


def bucket_for(rows: int, *, buckets: tuple[int, ...]) -> int:
    """Return the smallest bucket that holds ``rows``: 5 rows go into 8. ``rows`` is at most the largest bucket."""
    return buckets[bisect.bisect_left(buckets, rows)]


def plan(waiting_rows: Iterable[int], *, table: LatencyTable) -> Batch | None:
    """Choose the next batch of an idle model: the first requests, as many as give the most rows per second.

    Nothing waits for company: while one batch is computed the next one gathers, and an idle model takes what is there.
    With 17 rows waiting and costs of 1, 4 and 7 ms for buckets of 1, 16 and 32, sixteen rows go first (4.0 rows per ms)
    rather than all seventeen in a batch of 32 (2.4 rows per ms).

    Args:
        waiting_rows: Rows of each waiting request, in order of arrival; each at most the largest bucket.
        table: What each bucket costs.

    Returns:
        The batch, or None when nobody waits.
    """
    best: Batch | None = None
    best_rate = 0.0
    rows = 0
    for count, more in enumerate(waiting_rows, start=1):
        rows += more
        if rows > table.buckets[-1]:
            break
        bucket = bucket_for(rows, buckets=table.buckets)
        predicted_s = table.predicted_s(bucket)
        rate = rows / predicted_s if predicted_s > 0 else math.inf
        if rate >= best_rate:
            best, best_rate = Batch(requests=count, rows=rows, bucket=bucket), rate
    return best


def predicted_wait_s(waiting_rows: int, *, now_s: float, running: Running | None, table: LatencyTable) -> float:
    """Predict how long a request that arrives now waits before its own batch starts.

    Args:
        waiting_rows: Rows of all requests that wait already.
        now_s: The clock.
        running: The batch in the model.
        table: What each bucket costs.

    Returns:
        Seconds: what is left of the running batch, and the batches of the queue at the largest bucket.
    """
    largest = table.buckets[-1]
    full, rest = divmod(waiting_rows, largest)
    wait_s = full * table.predicted_s(largest)
    if rest:
        wait_s += table.predicted_s(bucket_for(rest, buckets=table.buckets))
    if running is not None:
        wait_s += max(0.0, table.predicted_s(running.bucket) - (now_s - running.started_s))
    return wait_s


def retry_after_s(wait_s: float, *, bound_s: float) -> int:
    """Say when the predicted wait will be within the bound again, in whole seconds, at least one."""
    return max(1, math.ceil(wait_s - bound_s))


def is_stalled(running: Running | None, *, now_s: float, table: LatencyTable) -> bool:
    """Tell whether the running batch is so late that the model has to be called stuck."""
    if running is None:
        return False
    patience_s = max(STALL_FLOOR_S, STALL_FACTOR * table.predicted_s(running.bucket))
    return now_s - running.started_s > patience_s
