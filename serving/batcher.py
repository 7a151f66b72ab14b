"""The loop that carries out ``schedule``: requests join a queue, batches leave it, answers go back.

Event driven: a batch is planned when a request arrives at an idle model and when a batch ends, never on a tick. One
batch is in the model at a time. All state belongs to the event loop's thread; no locks.

Promises: a request is answered, refused at the door (OverloadedError) or failed by itself; one that its client gave up
(its task was cancelled) before its batch left is not computed.
"""

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from serving import schedule
from serving.engine import Engine
from serving.errors import OverloadedError
from serving.metrics import Metrics
from serving.protocol import Answer, InferRequest
from serving.schedule import LatencyTable, Running


@dataclass(slots=True, kw_only=True, eq=False)
class Waiting:
    """A request in the queue."""

    request: InferRequest
    arrived_s: float
    answer: asyncio.Future[Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Batches the requests of one model.

    Args:
        engine: Where batches run.
        table: What each bucket costs, from warming.
        metrics: Where batches are counted.
        wait_bound_s: The predicted wait beyond which a request is refused.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        table: LatencyTable,
        metrics: Metrics,
        wait_bound_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = table
        self._engine = engine
        self._metrics = metrics
        self._wait_bound_s = wait_bound_s
        self._clock = clock
        self._queue: deque[Waiting] = deque()
        self._queued_rows = 0
        self._running: Running | None = None
        self._planned: asyncio.Handle | None = None
        self._batch: asyncio.Task[None] | None = None

    @property
    def is_stalled(self) -> bool:
        """Whether the model is stuck in a batch."""
        return schedule.is_stalled(self._running, now_s=self._clock(), table=self.table)

    async def submit(self, request: InferRequest) -> Answer:
        """Queue a request and return its answer; cancel the calling task to withdraw it.

        Raises:
            OverloadedError: The predicted wait is beyond the bound.
            ModelFailedError: The program raised on these rows.
        """
        self._admit()
        waiting = Waiting(request=request, arrived_s=self._clock())
        self._queue.append(waiting)
        self._queued_rows += request.rows
        if self._running is None and self._planned is None:
            # Planned after the events that are ready now, so that requests which arrived together leave together.
            self._planned = asyncio.get_running_loop().call_soon(self._start_batch)
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            self._withdraw(waiting)
            raise

    def _admit(self) -> None:
        wait_s = schedule.predicted_wait_s(
            self._queued_rows, now_s=self._clock(), running=self._running, table=self.table
        )
        if wait_s > self._wait_bound_s:
            raise OverloadedError(
                f"the queue of model '{self._engine.model.name}'",
                found=f"a predicted wait of {wait_s:.3f} s behind {self._queued_rows} rows",
                expected=f"at most {self._wait_bound_s:g} s",
                retry_after_s=schedule.retry_after_s(wait_s, bound_s=self._wait_bound_s),
                next_step="Come back after Retry-After seconds, or add workers.",
            )

    def _withdraw(self, waiting: Waiting) -> None:
        if waiting in self._queue:
            self._queue.remove(waiting)
            self._queued_rows -= waiting.request.rows

    def _start_batch(self) -> None:
        self._planned = None
        batch = schedule.plan((waiting.request.rows for waiting in self._queue), table=self.table)
        if batch is None:
            return
        members = [self._queue.popleft() for _ in range(batch.requests)]
        self._queued_rows -= batch.rows
        self._running = Running(bucket=batch.bucket, started_s=self._clock())
        self._batch = asyncio.create_task(self._run(members, bucket=batch.bucket))
        self._batch.add_done_callback(functools.partial(self._end_batch, members=members))

    async def _run(self, members: list[Waiting], *, bucket: int) -> None:
        started_s = self._clock()
        result = await self._engine.run([member.request.arrays for member in members], bucket=bucket)
        seconds = self._clock() - started_s
        self.table = self.table.observed(bucket, seconds)
        self._metrics.count_batch(
            rows=sum(member.request.rows for member in members),
            bucket=bucket,
            seconds=seconds,
            queued_s=[started_s - member.arrived_s for member in members],
        )
        self._metrics.count_outputs(result.sums)
        for member, answer in zip(members, result.answers, strict=True):
            _settle(member, answer)

    def _end_batch(self, task: asyncio.Task[None], *, members: list[Waiting]) -> None:
        """Go on with the next batch; a fault of our own in this one fails its requests, not the loop."""
        self._running = None
        self._batch = None
        fault = asyncio.CancelledError() if task.cancelled() else task.exception()
        if fault is not None:
            for member in members:
                _settle(member, fault)
        self._start_batch()


def _settle(member: Waiting, answer: Answer | BaseException) -> None:
    """Give a request its answer or its error, unless its client has left."""
    if member.answer.done():
        return
    if isinstance(answer, BaseException):
        member.answer.set_exception(answer)
    else:
        member.answer.set_result(answer)
