"""A serving fleet of the stack: one process for each model, started when there is a champion to serve."""

import json
import secrets
import sys
from contextlib import suppress
from pathlib import Path

import httpx

from flows.errors import StackError
from flows.stack.environment import Addresses, inherited
from flows.stack.process import Record, Service, find, free_port, launch, wait_ready

WORKERS = 2


def token_file(home: Path) -> Path:
    """The control token of this state folder: made on first use, readable by its owner alone."""
    path = home / "token"
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".token.{secrets.token_hex(4)}")
        beside.touch(mode=0o600)
        beside.write_text(secrets.token_urlsafe(32))
        with suppress(FileExistsError):  # the first of several that start at once wins
            path.hardlink_to(beside)
        beside.unlink()
    return path


def start(model: str, home: Path, addresses: Addresses, *, workers: int = WORKERS) -> Record:
    """Start the fleet of a model, if it is not running; return when all workers serve.

    Raises:
        StackError: it did not come up; the end of its log is shown.
    """
    record = find(home, f"fleet-{model}")
    if record is None:
        port = free_port()
        service = _service(model, home, addresses, port=port, workers=workers)
        record = launch(service, home, port=port)
        wait_ready(service, record)
    return record


def status(url: str) -> dict[str, object]:
    """What a fleet says of itself.

    Raises:
        StackError: it does not answer.
    """
    try:
        answer = httpx.get(url, timeout=10.0, trust_env=False).raise_for_status()
    except httpx.HTTPError as error:
        raise StackError(f"the fleet at {url} does not answer: {error}. See 'python -m flows status'.") from error
    found: dict[str, object] = answer.json()
    return found


def _service(model: str, home: Path, addresses: Addresses, *, port: int, workers: int) -> Service:
    url = f"http://127.0.0.1:{port}"
    return Service(
        name=f"fleet-{model}",
        command=(
            *(sys.executable, "-m", "serving", "fleet", "--model", f"{model}@champion", "--workers", str(workers)),
            *("--port", str(port), "--token-file", str(token_file(home)), "--state", str(home / "fleets" / model)),
        ),
        url=url,
        ready=lambda: _all_ready(url),
        environment=inherited(home, addresses, OMP_NUM_THREADS="1"),
    )


def _all_ready(url: str) -> bool:
    try:
        found = httpx.get(url, timeout=2.0, trust_env=False)
        workers = found.json()["workers"] if found.is_success else []
    except (httpx.HTTPError, json.JSONDecodeError):
        return False
    return bool(workers) and all(worker["state"] == "ready" for worker in workers)
