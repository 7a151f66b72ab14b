"""The demo: the stack up, the pipeline run as a deployment, its summary shown, the stack down.

Real servers and real processes; what the demo shows is what ``prefect deployment run 'pipeline/default'`` does.
"""

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows import stack
from flows.errors import StackError, StageError
from flows.stack import Addresses, Say, guard
from flows.stack.lock import lock_file
from flows.starting import start
from flows.summary import Summary, as_text


def demo(home: Path, *, recipe: str, free_ports: bool, keep: bool, say: Say) -> Summary:
    """Run the pipeline from nothing to its summary.

    Args:
        home: The state folder.
        recipe: The recipe's module.
        free_ports: Take free ports instead of the usual ones.
        keep: Leave the stack running.
        say: Hears every line.

    Returns:
        The summary, as the pipeline wrote it.

    Raises:
        StageError: the pipeline did not end well.
        GuardError: a process unpickled, or reached for another machine.
        StackError: a server did not start, or another demo runs in this state folder.
    """
    began = time.monotonic()
    with _only_one(home):
        try:
            say("Starting the stack")
            addresses = start(home, free_ports=free_ports, say=say)
            summary = _run(home, addresses, recipe=recipe, say=say)
            guarded = guard.account(home, addresses, since=began)
        finally:
            if not keep:
                say("Stopping the stack (KEEP=1 leaves it running)")
                stack.down(home, say=say)
    say(f"\n{as_text(summary)}\n{guarded}\n")
    if keep:
        say("The stack is running; 'python -m flows down' (make down) stops it:")
        _say_addresses(home, addresses, say)
    return summary


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """One demo at a time for a state folder: the first to end would stop the other's servers."""
    with lock_file(home / "demo.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"another demo runs in '{home}'; wait for it, or set TREERING_HOME to another folder (with PORTS=free)."
            ) from None
        yield


def _run(home: Path, addresses: Addresses, *, recipe: str, say: Say) -> Summary:
    from flows import following  # imports Prefect, whose settings are right only since the stack was started

    _say_addresses(home, addresses, say)
    say("Running deployment 'pipeline/default'")
    finished = following.run("pipeline/default", {"recipe": recipe}, say=say)
    if finished.state is None or not finished.state.is_completed():
        raise StageError(
            f"the pipeline ended as {finished.state_name}: {finished.state.message if finished.state else ''} "
            f"See {addresses.prefect_ui}/runs/flow-run/{finished.id} with KEEP=1, or the log of the Prefect worker in "
            f"{home / 'stack'}."
        )
    (path,) = (home / "runs").glob(f"*/pipeline-{finished.id}/summary.json")
    return Summary.from_dict(json.loads(path.read_text()))


def _say_addresses(home: Path, addresses: Addresses, say: Say) -> None:
    say(f"  MLflow   {addresses.mlflow}")
    say(f"  Prefect  {addresses.prefect_ui}")
    for record in stack.records(home):
        if record.name.startswith("fleet-"):
            say(f"  {record.name}  {record.url}")
