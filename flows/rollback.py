"""The rollback flow: away from a suspect, if it is still live; otherwise a recorded no-op.

Called by a monitor, by hand, or by Prefect's automation on the event ``treering.anomaly.confirmed``, whose payload is
``event``. However often it is called for one suspect, the alias moves once: a compare-and-set in the ledger, never "one
back". The order is the ledger, the workers, MLflow's view: neither Prefect nor MLflow need answer for a fleet to be
taken back.
"""

import time
from dataclasses import dataclass
from typing import Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

import registry
from flows import fleets
from flows.errors import StackError, StageError
from flows.summary import short


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """What a rollback did: ``action`` is ``rollback`` or ``nothing``."""

    model: str
    action: str
    suspect: str
    live_version: int | None
    live_root: str | None
    seconds: float


def _run_name() -> str:
    given = flow_run.parameters
    return f"rollback {given.get('model') or (given.get('event') or {}).get('model')}"


@flow(name="rollback", flow_run_name=_run_name)
def rollback(
    event: dict[str, Any] | None = None,
    model: str | None = None,
    suspect: str | None = None,
    reason: str = "rolled back by hand",
) -> RolledBack:
    """Go back from a suspect root and quarantine it.

    Args:
        event: An event's payload {model, suspect_root, reason}; or else the next three.
        model: The registered model.
        suspect: The root under suspicion, ``sha256:…``.
        reason: What was seen.

    Raises:
        ValueError: neither an event nor model and suspect were given.
        StageError: the ledger moved and a worker did not follow.
    """
    if event is not None:
        model, suspect, reason = event.get("model"), event.get("suspect_root"), str(event.get("reason", "an event"))
    if not model or not suspect:
        raise ValueError(f"rollback needs model and suspect, or an event that holds them; found {event or 'neither'}")
    done = go_back(model, suspect=suspect, reason=reason, flow_run=str(flow_run.id) if flow_run.id else None)
    done_words = f"back at version {done.live_version}" if done.action == "rollback" else "nothing to do"
    get_run_logger().info("%s after %.2f s, for %s: %s", done_words, done.seconds, short(suspect), reason)
    return done


def go_back(
    model: str, *, suspect: str, reason: str, actor: str | None = None, flow_run: str | None = None
) -> RolledBack:
    """What the flow does, without Prefect.

    Raises:
        StageError: the ledger moved and a worker did not follow.
        RegistryUnavailableError: the workers were taken back and MLflow does not show it yet.
    """
    started = time.monotonic()
    entry = registry.rollback(model, suspect=suspect, reason=reason, actor=actor, flow_run=flow_run, show=False)
    if entry.action == "rollback" and entry.after is not None:
        _take_back(model, suspect, entry.after.root)
    seconds = time.monotonic() - started
    registry.sync(model)
    return RolledBack(
        model=model,
        action=entry.action,
        suspect=suspect,
        live_version=entry.after.version if entry.after else None,
        live_root=entry.after.root if entry.after else None,
        seconds=seconds,
    )


def _take_back(model: str, suspect: str, back: str) -> None:
    """Every worker from the suspect to what the ledger says: out of memory, or else by what it names."""
    fleet = fleets.running(model)
    if fleet is None:  # nothing serves; whatever starts asks the ledger
        return
    try:
        status = fleets.undo(fleet, suspect)
    except StackError:  # this fleet was started after the suspect went live, and has nothing to go back to
        status = {"workers": []}
    if {worker["root"] for worker in status["workers"]} == {back}:
        return
    status = fleets.converge(fleet)
    if not status["converged"]:
        raise StageError(
            f"'{model}' went back in the ledger, but its fleet did not follow: {status['problem']}. See "
            f"{fleet.url}; it tries again by itself."
        )
