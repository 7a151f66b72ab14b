"""The watch flow: scrape the workers, judge, and on a confirmed anomaly roll back.

The alarm goes two ways: this flow calls ``rollback`` itself, and it emits the event ``treering.anomaly.confirmed``,
for which ``prefect.yaml`` has an automation. Whichever comes second finds nothing left to do.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prefect import flow, get_run_logger
from prefect.events import emit_event

from flows import fleets
from flows.errors import StageError
from flows.rollback import RolledBack, rollback
from flows.settings import victoria_url
from monitors import Alarm, Embedded, Listeners, MetricStore, Victoria, Watch, load_detector

INTERVAL_S = 0.5
EVENT = "treering.anomaly.confirmed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a watch saw: an alarm and what followed, or nothing."""

    model: str
    alarm: bool
    suspect: str | None
    score: float
    reasons: list[str]
    alarm_at: float | None
    rollback: RolledBack | None


@flow(name="watch")
def watch(model: str, detector: str, seconds: float = 3600.0) -> Watched:
    """Watch a model's workers until an alarm was dealt with, or for a time.

    Args:
        model: The registered model.
        detector: A checkpoint folder that holds a detector (``monitors.save_detector``).
        seconds: How long at most.

    Raises:
        StageError: no fleet serves the model.
        InvalidDetectorError: the folder holds no detector.
    """
    fleet = fleets.running(model)
    if fleet is None:
        raise StageError(f"no fleet serves '{model}': expected the one of the deploy flow. Deploy a version first.")
    alarms: list[Alarm] = []
    log = get_run_logger()
    listeners = Listeners(
        on_alarm=alarms.append,
        on_judgement=lambda judgement: log.info("score %.2f for %s", judgement.score, judgement.window.root[:19]),
        on_fault=lambda fault: log.warning("%s", fault),
    )
    deadline = time.monotonic() + seconds
    with metric_store() as store, Watch(workers=fleet.workers, store=store, listeners=listeners) as watching:
        watching.use(load_detector(detector))
        pause = threading.Event()
        while not alarms and time.monotonic() < deadline:
            watching.tick(now_ms=time.time_ns() // 1_000_000)
            pause.wait(INTERVAL_S)
    return _acted_on(alarms[0]) if alarms else _quiet(model)


@contextmanager
def metric_store() -> Iterator[MetricStore]:
    """VictoriaMetrics where there is one, else this process's memory."""
    url = victoria_url()
    if url is None:
        yield Embedded()
        return
    store = Victoria(url)
    try:
        yield store
    finally:
        store.close()


def _acted_on(alarm: Alarm) -> Watched:
    reasons = [f"{reason.figure} {reason.found:.3g} (usually {reason.usual:.3g})" for reason in alarm.reasons[:4]]
    payload = {
        "model": alarm.model,
        "suspect_root": alarm.suspect_root,
        "generation": alarm.generation,
        "score": alarm.score,
        "reason": f"anomaly score {alarm.score:.1f}: {', '.join(reasons)}",
    }
    emit_event(EVENT, resource={"prefect.resource.id": f"treering.model.{alarm.model}"}, payload=payload)
    done = rollback(event=payload)
    return Watched(
        model=alarm.model,
        alarm=True,
        suspect=alarm.suspect_root,
        score=alarm.score,
        reasons=reasons,
        alarm_at=alarm.at_ms / 1000,
        rollback=done,
    )


def _quiet(model: str) -> Watched:
    return Watched(model=model, alarm=False, suspect=None, score=0.0, reasons=[], alarm_at=None, rollback=None)
