"""The drill's second half: a spoiled version is live, and what follows is watched from outside.

Nothing here takes it back: a monitor process must see it in the workers' metrics, and the ledger and the workers must
then say so. More alarms about the same version must move nothing.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from prefect import get_run_logger

import registry
from flows import fleets
from flows.errors import StageError
from flows.patience import await_prefect
from flows.release import Released
from flows.rollback import rollback
from flows.settings import home
from flows.summary import Drill

PATIENCE_S = 90.0
EVENT_S = 30.0  # for the automation's own rollback run to come second
FURTHER_ALARMS = 3
POLL_S = 0.05

T = TypeVar("T")


def observe(model: str, spoiled: Released, *, back: Released, live_since: float) -> Drill:
    """Wait until the spoiled version was taken back, and raise more alarms about it.

    Args:
        model: The registered model.
        spoiled: The version that must go.
        back: The version that must come back.
        live_since: When every worker served the spoiled one; monotonic, seconds.

    Raises:
        StageError: it was not taken back in time, or not to ``back``.
    """
    caught = _until(lambda: _taken_back(model, spoiled.root))
    if caught is None:
        raise StageError(
            f"the spoiled version {spoiled.version} of '{model}' was not rolled back within {PATIENCE_S:.0f} s. Look "
            f"into monitor-{model}.log in {home() / 'stack'}."
        )
    seen_at = time.monotonic()
    if caught.after is None or caught.after.root != back.root:
        raise StageError(f"the drill rolled back to {caught.after}; expected version {back.version}, {back.root}.")
    if _until(lambda: _roots(model) == {back.root}) is None:
        raise StageError(f"the fleet of '{model}' serves {_roots(model)} {PATIENCE_S:.0f} s after its rollback.")
    followed_at = time.monotonic()
    said = f"the monitor took version {spoiled.version} back after {seen_at - live_since:.1f} s: {caught.reason}"
    get_run_logger().info("%s; version %s is live", said, back.version)
    further = _further_alarms(model, caught)
    if _roots(model) != {back.root}:
        raise StageError(f"after the drill the fleet of '{model}' serves {_roots(model)}; expected {back.root}.")
    return Drill(
        detection_seconds=seen_at - live_since,
        rollback_seconds=followed_at - seen_at,
        reason=caught.reason,
        back_at_version=back.version,
        further_alarms=len(further),
        moved_by_further_alarms=sum(entry.quarantined == caught.quarantined for entry in further),
    )


def _until(look: Callable[[], T | None]) -> T | None:
    """What a look gives once it gives something, or None when it gave nothing for ``PATIENCE_S``."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(POLL_S)
    return None


def _taken_back(model: str, root: str) -> registry.Entry | None:
    entries = registry.history(model)
    return next((entry for entry in entries if entry.action == "rollback" and entry.quarantined == root), None)


def _roots(model: str) -> set[str | None]:
    return {worker["root"] for worker in fleets.status(fleets.started(model))["workers"]}


def _further_alarms(model: str, caught: registry.Entry) -> tuple[registry.Entry, ...]:
    """What came of more alarms: by call, and by the automation's own run."""
    for _ in range(FURTHER_ALARMS):
        await_prefect()
        rollback(model=model, suspect=caught.quarantined, reason="a repeated alarm")
    deadline = time.monotonic() + EVENT_S
    while len(registry.history(model)) <= caught.sequence + FURTHER_ALARMS and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return registry.history(model)[caught.sequence :]
