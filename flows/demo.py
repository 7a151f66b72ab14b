"""The demo: the stack up, the pipeline run as a deployment, its summary shown, the stack down.

Real servers and real processes; what the demo shows is what ``prefect deployment run 'pipeline/default'`` does.
"""

import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flows import stack
from flows.errors import StackError, StageError
from flows.stack import Addresses, Say, guard
from flows.stack.lock import lock_file
from flows.starting import start
from flows.summary import Summary, as_text


def demo(
    home: Path, *, recipes: Sequence[str], backend: str = "aoti", free_ports: bool, keep: bool, say: Say
) -> list[Summary]:
    """Run the pipeline from nothing to its summary, side by side for each of some recipes.

    Args:
        home: The state folder.
        recipes: Their modules.
        backend: What compiles the models.
        free_ports: Take free ports instead of the usual ones.
        keep: Leave the stack running.
        say: Hears every line.

    Returns:
        The summaries, as the pipelines wrote them.

    Raises:
        StageError: a pipeline did not end well.
        GuardError: a process unpickled, or reached for another machine.
        StackError: a server did not start, or another demo runs in this state folder.
    """
    began = time.monotonic()
    with _only_one(home):
        try:
            say("Starting the stack")
            addresses = start(home, free_ports=free_ports, say=say)
            summaries = _run(home, addresses, recipes=recipes, backend=backend, say=say)
            guarded = guard.account(home, addresses, since=began)
        finally:
            if not keep:
                say("Stopping the stack (KEEP=1 leaves it running)")
                stack.down(home, say=say)
    for summary in summaries:
        title = f"{summary.model}\n" if len(summaries) > 1 else ""
        say(f"\n{title}{as_text(summary)}\n")
    say(f"{guarded}\n")
    if keep:
        say("The stack is running; 'python -m flows down' (make down) stops it:")
        _say_addresses(home, addresses, say)
    return summaries


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


def _run(home: Path, addresses: Addresses, *, recipes: Sequence[str], backend: str, say: Say) -> list[Summary]:
    from flows import following  # imports Prefect, whose settings are right only since the stack was started

    _say_addresses(home, addresses, say)
    deployment = f"pipeline/{stack.deployment(home, addresses)}"
    say(f"Running deployment '{deployment}' for {', '.join(recipes)}")
    says = [_labelled(recipe, say) for recipe in recipes] if len(recipes) > 1 else [say]
    runs = [({"recipe": recipe, "backend": backend}, own) for recipe, own in zip(recipes, says, strict=True)]
    finished = following.run_all(deployment, runs)
    failures = [
        f"the pipeline of {recipe} ended as {run.state_name}: {run.state.message if run.state else ''} See "
        f"{addresses.prefect_ui}/runs/flow-run/{run.id} with KEEP=1, or flow-runs.log in "
        f"{home / 'stack'}."
        for recipe, run in zip(recipes, finished, strict=True)
        if run.state is None or not run.state.is_completed()
    ]
    if failures:
        raise StageError("\n".join(failures))
    paths = [path for run in finished for path in (home / "runs").glob(f"*/pipeline-{run.id}/summary.json")]
    return [Summary.from_dict(json.loads(path.read_text())) for path in paths]


def _labelled(recipe: str, say: Say) -> Say:
    """Says lines with the end of the recipe's name before them."""
    label = recipe.rpartition(".")[2]
    return lambda line: say(f"{label:<8}{line}")


def _say_addresses(home: Path, addresses: Addresses, say: Say) -> None:
    say(f"  MLflow   {addresses.mlflow}")
    say(f"  Prefect  {addresses.prefect_ui}")
    for record in stack.records(home):
        if record.name.startswith("fleet-"):
            say(f"  {record.name}  {record.url}")
