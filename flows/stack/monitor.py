"""A monitor of the stack: one process for each served model, started when there is a detector to judge with.

The detector lies at a fixed place in the state folder, so that a monitor that is started again finds it.
"""

import sys
from pathlib import Path

from flows.stack.environment import PATIENCE, Addresses, inherited
from flows.stack.lock import alone
from flows.stack.process import Record, Service, find, launch, stop, wait_ready

PREFIX = "monitor-"


def detector_folder(model: str, home: Path) -> Path:
    """Where a model's detector lies: a checkpoint that is replaced in one step."""
    return home / "detectors" / model


def ready_file(model: str, home: Path) -> Path:
    """A monitor writes it when it has looked at the workers for the first time."""
    return home / "monitors" / f"{model}.json"


def start(model: str, home: Path, addresses: Addresses) -> Record:
    """Start the monitor of a model with the detector at its place; return when it judges.

    Raises:
        StackError: it did not come up; the end of its log is shown.
    """
    with alone(home):
        _stop(model, home)
        ready_file(model, home).unlink(missing_ok=True)
        new = service(model, home, addresses)
        record = launch(new, home)
    wait_ready(new, record)
    return record


def end(model: str, home: Path) -> None:
    """Stop the monitor of a model, if one runs."""
    with alone(home):
        _stop(model, home)


def service(model: str, home: Path, addresses: Addresses) -> Service:
    """The monitor of a model."""
    return Service(
        name=PREFIX + model,
        command=(sys.executable, "-m", "flows", "monitor", model),
        url="",
        ready=ready_file(model, home).exists,
        environment=inherited(home, addresses, OMP_NUM_THREADS="1", **PATIENCE),
    )


def _stop(model: str, home: Path) -> None:
    record = find(home, PREFIX + model)
    if record is not None:
        stop(record, home)
