"""Watching a model's workers: scrape, judge, and on a confirmed anomaly roll back.

Two ways to run it: a monitor process of the stack, which watches for ever, and the ``watch`` flow, which ends with the
first alarm that was dealt with. An alarm is dealt with here and now, and also emitted as the event
``treering.anomaly.confirmed``, for which ``prefect.yaml`` has an automation; whichever comes second finds nothing left
to do.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.events import emit_event
from prefect.runtime import flow_run

from flows import fleets
from flows.errors import StageError
from flows.outages import once_an_outage
from flows.rollback import RolledBack, go_back
from flows.settings import home, patience_s, stack_name, victoria_auth, victoria_url
from flows.stack import monitor
from flows.stack.process import write_whole
from monitors import (
    Alarm,
    Embedded,
    Judgement,
    Listeners,
    MetricStore,
    MonitorError,
    Victoria,
    Watch,
    load_detector,
    now_ms,
)

INTERVAL_S = 0.5
EVENT = "treering.anomaly.confirmed"

Say = Callable[[str], None]


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


@flow(name="watch", flow_run_name="watch {model}")
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
    alarms: list[Alarm] = []
    stop = threading.Event()

    def end_with(alarm: Alarm) -> None:
        alarms.append(alarm)
        stop.set()

    timer = threading.Timer(seconds, stop.set)
    timer.daemon = True
    timer.start()
    try:
        _look(model, Path(detector), stop=stop, on_alarm=end_with, say=get_run_logger().info)
    finally:
        timer.cancel()
    if alarms:
        return _acted_on(alarms[0])
    return Watched(model=model, alarm=False, suspect=None, score=0.0, reasons=[], alarm_at=None, rollback=None)


def watch_for_ever(model: str, *, say: Say) -> None:
    """What a monitor process does: deal with every alarm. What it cannot deal with ends it; the keeper starts it again.

    Raises:
        StageError: no fleet serves the model, or one did not follow a rollback.
        StoreError: the metric store did not answer at the start.
        RegistryUnavailableError: the workers were taken back and MLflow does not show it yet.
    """
    ready = monitor.ready_file(model, home())
    ready.parent.mkdir(parents=True, exist_ok=True)
    _look(
        model,
        monitor.detector_folder(model, home()),
        stop=threading.Event(),
        on_alarm=lambda alarm: say(str(_acted_on(alarm))),
        say=say,
        on_first_look=lambda: write_whole(ready, json.dumps({"model": model, "pid": os.getpid()})),
    )


def _look(
    model: str,
    detector: Path,
    *,
    stop: threading.Event,
    on_alarm: Callable[[Alarm], None],
    say: Say,
    on_first_look: Callable[[], None] = lambda: None,
) -> None:
    """Scrape and judge until ``stop`` is set."""

    def tell_of_anomaly(judgement: Judgement) -> None:
        if judgement.score > 1:
            say(f"score {judgement.score:.2f} for version {judgement.window.version}, {judgement.window.root}")

    tell = once_an_outage(lambda fault: say(str(fault)))

    def tell_and_look_again(fault: MonitorError) -> None:
        tell(fault)
        watching.look_at(_workers(model))  # a fleet that was started again may have taken other ports

    listeners = Listeners(on_alarm=on_alarm, on_judgement=tell_of_anomaly, on_fault=tell_and_look_again)
    with metric_store() as store, Watch(workers=_workers(model), store=store, listeners=listeners) as watching:
        watching.use(load_detector(detector))
        watching.tick(now_ms=now_ms())
        on_first_look()
        watching.run(stop, interval_s=INTERVAL_S)


def _workers(model: str) -> tuple[str, ...]:
    fleet = fleets.running(model)
    if fleet is None:
        raise StageError(f"no fleet serves '{model}': expected the one of the deploy flow. Deploy a version first.")
    return fleet.workers


@contextmanager
def metric_store() -> Iterator[MetricStore]:
    """VictoriaMetrics where there is one, else this process's memory."""
    url = victoria_url()
    if url is None:
        yield Embedded()
        return
    store = Victoria(url, auth=victoria_auth(), labels={"stack": stack_name(home())}, patience_s=patience_s())
    try:
        yield store
    finally:
        store.close()


def _acted_on(alarm: Alarm) -> Watched:
    reasons = [f"{reason.figure} {reason.found:.3g} (usually {reason.usual:.3g})" for reason in alarm.reasons[:4]]
    reason = f"anomaly score {alarm.score:.1f}: {', '.join(reasons)}"
    payload = {
        "model": alarm.model,
        "suspect_root": alarm.suspect_root,
        "generation": alarm.generation,
        "score": alarm.score,
        "reason": reason,
    }
    resource = {"prefect.resource.id": f"treering.model.{alarm.model}", "treering.stack": stack_name(home())}
    emit_event(EVENT, resource=resource, payload=payload)
    run = str(flow_run.id) if flow_run.id else None
    done = go_back(alarm.model, suspect=alarm.suspect_root, reason=reason, actor="monitor", flow_run=run)
    return Watched(
        model=alarm.model,
        alarm=True,
        suspect=alarm.suspect_root,
        score=alarm.score,
        reasons=reasons,
        alarm_at=alarm.at_ms / 1000,
        rollback=done,
    )
