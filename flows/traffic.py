"""Traffic and collection beside a pipeline: a load generator and a monitor's scraping, each in a thread.

``Traffic`` keeps sending requests until its block ends and keeps every answer; ``Collector`` scrapes the workers into
the metric store, so that there is a healthy stretch to learn a detector from. A thread that failed is heard of when its
block ends.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType

from flows.errors import StageError
from flows.fleets import Fleet
from flows.outages import once_an_outage
from flows.proof import Oracle
from flows.watch import INTERVAL_S
from monitors import Listeners, MetricStore, MonitorError, Watch
from serving.load import Shot, run_load, summarize

MAX_REQUESTS = 1_000_000
MAX_SECONDS = 86_400.0  # only a run that hangs reaches it
PATIENCE_S = 240.0  # for a worker or a fleet that was killed: to be there again took 93 s where a core had much to do
PAUSE_S = 0.1
MOST_PER_S = 60.0
LEAST_PER_S = 4.0  # the monitor judges windows of 64 rows, and looks back 16 s at most
SHARE = 0.15  # of what idle workers could do: the cores are also for trainings, compiling, and other models
PROBES = 24  # requests that tell what idle workers can do
PROBE_SECONDS = 120.0  # in which these must have left


class Traffic:
    """Open-loop requests at a fixed rate from entering the block to leaving it."""

    def __init__(self, fleet: Fleet, *, model: str, oracle: Oracle, rate_per_s: float = MOST_PER_S) -> None:
        self.began_at = time.monotonic()
        self.shots: list[Shot] = []
        self._answering: set[str] = set()  # roots that have answered
        self._stop = threading.Event()
        self._send = partial(
            run_load,
            fleet.workers,
            model=model,
            requests=oracle.bodies(),
            max_requests=MAX_REQUESTS,
            max_seconds=MAX_SECONDS,
            rate_per_s=rate_per_s,
            patience_s=PATIENCE_S,
            stop=self._stop,
            on_shot=self._heard,
        )

    def __enter__(self) -> "Traffic":
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="traffic")
        self.began_at = time.monotonic()
        self._sending = self._thread.submit(self._send)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.shutdown()
        self.shots = self._sending.result()

    def _heard(self, shot: Shot) -> None:
        if shot.reply is not None:
            self._answering.add(shot.reply.root)

    def await_answer(self, root: str) -> bool:
        """Wait until a request was answered from ``root``; False when none was for ``PATIENCE_S``.

        Workers that were killed load again meanwhile: what is live need not answer at once.
        """
        deadline = time.monotonic() + PATIENCE_S
        while root not in self._answering:
            if time.monotonic() > deadline or self._sending.done():
                return False
            time.sleep(PAUSE_S)
        return True

    def between(self, start_at: float, end_at: float) -> list[Shot]:
        """Requests that left in a span of time (by the monotonic clock); complete once the block has ended."""
        return [shot for shot in self.shots if start_at <= self.began_at + shot.started_s < end_at]


def bearable_rate(fleet: Fleet, *, model: str, oracle: Oracle) -> float:
    """Requests per second that leave the workers most of their time, within ``LEAST_PER_S`` and ``MOST_PER_S``.

    Raises:
        WrongAnswerError: one of the requests that found it out was answered wrongly.
        StageError: none was answered.
    """
    shots = run_load(
        fleet.workers,
        model=model,
        requests=oracle.bodies(),
        max_requests=PROBES,
        max_seconds=PROBE_SECONDS,
        clients=1,
        patience_s=PATIENCE_S,
    )
    oracle.check(shots)
    usual_s = summarize(shots).p50_s
    if usual_s is None:
        raise StageError(
            f"none of {len(shots)} requests to {', '.join(fleet.workers)} was answered within {PATIENCE_S:g} s each; "
            "expected answers before the traffic begins. 'python -m flows status' shows the fleet, and where its log "
            "is.",
            last=shots[-1].error,
        )
    return max(LEAST_PER_S, min(MOST_PER_S, SHARE * len(fleet.workers) / usual_s))


class Collector:
    """Scrapes the workers into a store, judging nothing, while its block runs; says what it could not see."""

    def __init__(self, fleet: Fleet, store: MetricStore, *, say: Callable[[MonitorError], None]) -> None:
        listeners = Listeners(on_alarm=lambda _: None, on_fault=once_an_outage(say))
        self._watch = Watch(workers=fleet.workers, store=store, listeners=listeners)
        self._stop = threading.Event()

    def __enter__(self) -> "Collector":
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="collector")
        self._collecting = self._thread.submit(self._watch.run, self._stop, interval_s=INTERVAL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.shutdown()
        self._watch.close()
        self._collecting.result()
