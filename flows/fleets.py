"""Talk to the fleet of a model: where it is, what it serves, converge, undo."""

from dataclasses import dataclass
from typing import Any

import httpx

from flows import stack
from flows.errors import StackError
from flows.settings import home
from flows.stack.process import find

CALL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A running fleet: its own address and those of its workers."""

    url: str
    workers: tuple[str, ...]


def running(model: str) -> Fleet | None:
    """The fleet of a model in this state folder, or None."""
    record = find(home(), f"fleet-{model}")
    return _described(record.url) if record is not None else None


def started(model: str) -> Fleet:
    """The fleet of a model, started when it is not running; serves what the champion is.

    Raises:
        StackError: there is no stack, or the fleet did not come up.
    """
    addresses = stack.read(home())
    if addresses is None:
        raise StackError(f"no stack runs in {home()}: expected the one of 'python -m flows up'. Start it first.")
    return _described(stack.fleet.start(model, home(), addresses).url)


def _described(url: str) -> Fleet:
    status: dict[str, Any] = stack.fleet.status(url)
    return Fleet(url=url, workers=tuple(worker["url"] for worker in status["workers"]))


def converge(fleet: Fleet) -> dict[str, Any]:
    """Have every worker serve what the alias names; the fleet's status, ``converged`` or with a ``problem``."""
    return _post(fleet, "/converge", {})


def undo(fleet: Fleet, suspect: str) -> dict[str, Any]:
    """Take all workers back from a root, out of memory."""
    return _post(fleet, "/undo", {"root": suspect})


def _post(fleet: Fleet, path: str, body: dict[str, str]) -> dict[str, Any]:
    token = stack.fleet.token_file(home()).read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    try:
        answer = httpx.post(f"{fleet.url}{path}", json=body, headers=headers, timeout=CALL_S, trust_env=False)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise StackError(f"the fleet at {fleet.url} did not take POST {path}: {error}") from error
    found: dict[str, Any] = answer.json()
    return found
