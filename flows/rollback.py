"""The rollback flow: away from a suspect, if it is still live; otherwise a recorded no-op.

Called by the watch flow, by hand, or by Prefect's automation on the event ``treering.anomaly.confirmed``, whose payload
is ``event``. However often it is called for one suspect, the alias moves once: a compare-and-set in the ledger, never
"one back".
"""

import time
from dataclasses import dataclass
from typing import Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

import registry
from flows import fleets
from flows.errors import StageError


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """What a rollback did: ``action`` is ``rollback`` or ``nothing``."""

    model: str
    action: str
    suspect: str
    live_version: int | None
    live_root: str | None
    seconds: float


@flow(name="rollback")
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
    started = time.monotonic()
    if event is not None:
        model, suspect, reason = event.get("model"), event.get("suspect_root"), str(event.get("reason", "an event"))
    if not model or not suspect:
        raise ValueError(f"rollback needs model and suspect, or an event that holds them; found {event or 'neither'}")
    run = str(flow_run.id) if flow_run.id else None
    entry = registry.rollback(model, suspect=suspect, reason=reason, flow_run=run)
    if entry.action == "rollback":
        _take_back(model, suspect)
    seconds = time.monotonic() - started
    get_run_logger().info("%s of %s after %.2f s: %s", entry.action, suspect, seconds, reason)
    return RolledBack(
        model=model,
        action=entry.action,
        suspect=suspect,
        live_version=entry.after.version if entry.after else None,
        live_root=entry.after.root if entry.after else None,
        seconds=seconds,
    )


def _take_back(model: str, suspect: str) -> None:
    """The workers first, out of memory; then make sure that they serve what the ledger says."""
    fleet = fleets.running(model)
    if fleet is None:
        return
    fleets.undo(fleet, suspect)
    status = fleets.converge(fleet)
    if not status["converged"]:
        raise StageError(
            f"'{model}' went back in the ledger, but its fleet did not follow: {status['problem']}. See "
            f"{fleet.url}; it tries again by itself."
        )
