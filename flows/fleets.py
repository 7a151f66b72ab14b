"""Talk to the fleet of a model: where it is, what it serves, converge, undo.

A fleet that was killed is back within seconds, at its address; calls wait for it. They can be repeated: what is done
already is found done.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from flows import stack
from flows.errors import StackError
from flows.settings import home
from flows.stack.process import find
from serving import Bearer, Token

CALL_S = 60.0
PATIENCE_S = 60.0  # for a fleet that is being started again
PAUSE_S = 0.25


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
    return _described(stack.fleet.start(model, home(), stack.required(home())).url)


def status(fleet: Fleet) -> dict[str, Any]:
    """Who serves what."""
    return _call(fleet.url, lambda: httpx.get(fleet.url, timeout=CALL_S, trust_env=False))


def converge(fleet: Fleet) -> dict[str, Any]:
    """Have every worker serve what the alias names; the fleet's status, ``converged`` or with a ``problem``."""
    return _post(fleet, "/converge", {})


def undo(fleet: Fleet, suspect: str) -> dict[str, Any]:
    """Take all workers back from a root, out of memory."""
    return _post(fleet, "/undo", {"root": suspect})


def _described(url: str) -> Fleet:
    found = status(Fleet(url=url, workers=()))
    return Fleet(url=url, workers=tuple(worker["url"] for worker in found["workers"]))


def _post(fleet: Fleet, path: str, body: dict[str, str]) -> dict[str, Any]:
    auth = Bearer(Token(file=stack.fleet.token_file(home())))
    url = fleet.url + path
    return _call(url, lambda: httpx.post(url, json=body, auth=auth, timeout=CALL_S, trust_env=False))


def _call(url: str, send: Callable[[], httpx.Response]) -> dict[str, Any]:
    """The answer of a fleet, which may be on its way up again.

    Raises:
        StackError: it does not answer within ``PATIENCE_S``, or it refuses.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            answer = send().raise_for_status()
        except httpx.TransportError as error:
            if time.monotonic() > deadline:
                raise StackError(
                    f"the fleet at {url} does not answer: {error}. See 'python -m flows status'."
                ) from error
            time.sleep(PAUSE_S)
        except httpx.HTTPStatusError as error:
            raise StackError(f"the fleet at {url} refused: {error.response.text}") from error
        else:
            found: dict[str, Any] = answer.json()
            return found
