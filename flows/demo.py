"""The demo: the stack up, the pipeline run as a deployment, its summary shown, the stack down.

Real servers and real processes; what the demo shows is what ``prefect deployment run 'pipeline/default'`` does. A stack
that ran before the demo runs on after it.
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
from flows.terminal import command
from recipes import RecipeError, load


def demo(
    home: Path, *, recipes: Sequence[str], backend: str = "aoti", free_ports: bool, keep: bool, say: Say
) -> list[Summary]:
    """Run the pipeline from nothing to its summary, side by side for each of some recipes.

    Args:
        home: The state folder.
        recipes: Their modules.
        backend: What compiles the models.
        free_ports: Take free ports instead of the usual ones.
        keep: Leave the stack running; one that runs already is left running in any case.
        say: Hears every line.

    Returns:
        The summaries, as the pipelines wrote them.

    Raises:
        StageError: a recipe cannot be run, and nothing was started; or a pipeline did not end well.
        GuardError: a process unpickled, or reached for another machine.
        StackError: a server did not start, or another demo runs in this state folder.
    """
    _check(recipes)
    began = time.monotonic()
    with _only_one(home):
        found_running = any(record.process() for record in stack.records(home))
        keep = keep or found_running
        try:
            say("Starting the stack")
            addresses = start(home, free_ports=free_ports, say=say)
            summaries = _run(home, addresses, recipes=recipes, backend=backend, say=say)
            guarded = guard.account(home, addresses, since=began)
        finally:
            if not keep:
                say("Stopping the stack (KEEP=1 leaves it running)")
                stack.down(home, comes_back=False, say=say)
    for summary in summaries:
        title = f"{summary.model}\n" if len(summaries) > 1 else ""
        say(f"\n{title}{as_text(summary)}\n")
    say(f"{guarded}\n")
    if keep:
        say(f"The stack is running; '{command()} down' (make down) stops it:")
        _say_addresses(home, addresses, say)
        for summary in summaries:
            say(f"  versions of {summary.model}  {addresses.mlflow}/#/models/{summary.model}")
    return summaries


def _check(recipes: Sequence[str]) -> None:
    """Whether each can be loaded: what is wrong with one is better known before servers start."""
    for recipe in recipes:
        try:
            load(recipe)
        except RecipeError as error:
            raise StageError(str(error)) from error


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
        f"the pipeline of {recipe} ended as {run.state_name}: {_sentence(run.state.message if run.state else None)} "
        f"See {addresses.prefect_ui}/runs/flow-run/{run.id} with KEEP=1, or flow-runs.log in {home / 'stack'}."
        for recipe, run in zip(recipes, finished, strict=True)
        if run.state is None or not run.state.is_completed()
    ]
    if failures:
        raise StageError("\n".join(failures))
    paths = [path for run in finished for path in (home / "runs").glob(f"*/pipeline-{run.id}/summary.json")]
    return [Summary.from_dict(json.loads(path.read_text())) for path in paths]


def _sentence(text: str | None) -> str:
    text = (text or "no reason was given").rstrip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


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
