"""The loop: scrape → store → windows → judgements → decision → callback.

One ``tick`` does all of it once, with the clock passed in; ``run`` repeats it until it is told to stop. Windows are
read back from the store, so a watch that is started again knows what the last one saw. Each judgement also becomes a
sample, ``treering_anomaly_score``, for dashboards. What an alarm leads to is the caller's business.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from monitors.clock import now_ms
from monitors.decide import Alarm, Policy, State, decide
from monitors.detector import DEFAULT_BUDGET, Detector, Judgement, fit
from monitors.errors import MonitorError, StoreError
from monitors.features import GROWTH, MIN_ROWS, SPAN_MS, STALE_MS, windows_at, windows_between
from monitors.scrape import TIMEOUT_S, scrape_all
from monitors.store import MetricStore, Sample
from monitors.totals import tracks

SCORE = "treering_anomaly_score"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Whom a watch tells: of a confirmed anomaly, of every judgement, and of what it could not see."""

    on_alarm: Callable[[Alarm], None]
    on_judgement: Callable[[Judgement], None] = lambda judgement: None
    on_fault: Callable[[MonitorError], None] = lambda fault: None


class Watch:
    """Watches workers with one detector for each model; close it, or use it in a ``with``.

    Args:
        workers: Their addresses, such as http://127.0.0.1:8000.
        store: Where samples are kept; stays the caller's to close.
        listeners: Called from the thread that ticks.
        policy: When judgements become an alarm.
        span_ms, min_rows: Length of a window and its least rows; those that the detectors were fitted with.
    """

    def __init__(
        self,
        *,
        workers: Sequence[str],
        store: MetricStore,
        listeners: Listeners,
        policy: Policy | None = None,
        span_ms: int = SPAN_MS,
        min_rows: int = MIN_ROWS,
    ) -> None:
        self._workers = tuple(workers)
        self._store = store
        self._listeners = listeners
        self._policy = policy or Policy()
        self._span_ms, self._min_rows = span_ms, min_rows
        self._client = httpx.Client(timeout=TIMEOUT_S, trust_env=False)
        self._detectors: dict[str, Detector] = {}
        self._judged_until: dict[tuple[str, str], int] = {}
        self._state = State()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the workers."""
        self._client.close()

    def look_at(self, workers: Sequence[str]) -> None:
        """Scrape these from the next tick on."""
        self._workers = tuple(workers)

    def use(self, detector: Detector) -> None:
        """Judge this detector's model from the next tick on; without any, a watch only collects."""
        self._detectors[detector.model] = detector

    def tick(self, *, now_ms: int) -> tuple[Judgement, ...]:
        """Scrape, store, judge and decide once; the judgements of windows that were not judged before.

        Raises:
            StoreError: The metric store failed; nothing was judged.
        """
        samples, faults = scrape_all(self._client, self._workers, now_ms=now_ms)
        for fault in faults:
            self._listeners.on_fault(fault)
        self._store.write(samples)
        judgements = tuple(
            judgement for detector in tuple(self._detectors.values()) for judgement in self._judge(detector, now_ms)
        )
        self._store.write(_score_sample(judgement) for judgement in judgements)
        for judgement in judgements:
            self._listeners.on_judgement(judgement)
            self._state, alarm = decide(self._state, judgement, policy=self._policy, now_ms=now_ms)
            if alarm is not None:
                self._listeners.on_alarm(alarm)
        return judgements

    def run(self, stop: threading.Event, *, interval_s: float) -> None:
        """Tick every ``interval_s`` until ``stop`` is set."""
        while not stop.is_set():
            try:
                self.tick(now_ms=now_ms())
            except StoreError as fault:
                # A store that is down for a minute must not end the watch: the fault is told and the next tick tries.
                self._listeners.on_fault(fault)
            stop.wait(interval_s)

    def _judge(self, detector: Detector, now_ms: int) -> list[Judgement]:
        reach_ms = GROWTH[-1] * self._span_ms + STALE_MS
        series = self._store.read({"model": detector.model}, start_ms=now_ms - reach_ms, end_ms=now_ms)
        windows = windows_at(
            tracks(series), model=detector.model, end_ms=now_ms, span_ms=self._span_ms, min_rows=self._min_rows
        )
        judgements = []
        for window in windows:
            suspect = (window.model, window.root)
            # The store may show a scrape late: the same window, seen twice, must not count twice.
            if window.end_ms > self._judged_until.get(suspect, 0):
                self._judged_until[suspect] = window.end_ms
                judgements.append(detector.judge(window))
        return judgements


def learn(
    store: MetricStore,
    model: str,
    *,
    start_ms: int,
    end_ms: int,
    span_ms: int = SPAN_MS,
    min_rows: int = MIN_ROWS,
    budget: float = DEFAULT_BUDGET,
) -> Detector:
    """Fit a detector on the healthy traffic that the store holds for a span of time.

    Raises:
        TooFewWindowsError: There was too little traffic.
        StoreError: The metric store failed.
    """
    series = store.read({"model": model}, start_ms=start_ms, end_ms=end_ms)
    windows = windows_between(
        tracks(series), model=model, start_ms=start_ms, end_ms=end_ms, span_ms=span_ms, min_rows=min_rows
    )
    return fit(windows, model=model, budget=budget)


def _score_sample(judgement: Judgement) -> Sample:
    labels = (("model", judgement.window.model), ("root", judgement.window.root))
    return Sample(name=SCORE, labels=labels, at_ms=judgement.window.end_ms, value=judgement.score)
