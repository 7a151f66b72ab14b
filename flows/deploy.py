"""The deploy flow: a version becomes the champion and every worker serves it, or it is taken back.

The alias moves through the ledger, by compare-and-set on what was live when the flow looked. When a worker refuses
the version, the move is undone in the ledger and the flow fails with the worker's reason.
"""

import time
from dataclasses import dataclass

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

import registry
from flows import fleets
from flows.errors import StageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A version that every worker serves."""

    model: str
    version: int
    root: str
    workers: list[str]
    seconds: float


@flow(name="deploy", flow_run_name="deploy {model} version {version}")
def deploy(model: str, version: int, reason: str = "deployed") -> Deployed:
    """Promote a version and wait until the fleet serves it.

    Args:
        model: The registered model.
        version: Its number.
        reason: Why; stands in the ledger.

    Raises:
        UnknownVersionError: no such version.
        QuarantinedError: its root was rolled back and not cleared.
        StaleExpectationError: someone else moved the alias meanwhile.
        StageError: a worker refused it; the ledger went back.
    """
    started = time.monotonic()
    live = _live(model)
    entry = registry.promote(model, version, expect=live, reason=reason, flow_run=_run_id())
    assert entry.after is not None, "a promotion leaves a version"
    fleet = fleets.running(model) or fleets.started(model)
    status = fleets.converge(fleet)
    if not status["converged"]:
        registry.rollback(
            model, suspect=entry.after.root, reason=f"not deployed: {status['problem']}", flow_run=_run_id()
        )
        raise StageError(
            f"version {version} of '{model}' was not deployed: {status['problem']}. Version {live} serves on; the "
            f"root is quarantined until 'python -m registry clear {model} {entry.after.root} --reason …'."
        )
    seconds = time.monotonic() - started
    get_run_logger().info("%s/%s is live on %s workers after %.2f s", model, version, len(fleet.workers), seconds)
    return Deployed(model=model, version=version, root=entry.after.root, workers=list(fleet.workers), seconds=seconds)


def _live(model: str) -> int | None:
    """The number that the ledger holds live, None before the first promotion."""
    target = registry.live(registry.history(model), "champion")
    return target.version if target is not None else None


def _run_id() -> str | None:
    return str(flow_run.id) if flow_run.id else None
