"""A serving fleet of the stack: one process for each model, started when there is a champion to serve."""

import json
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from flows.errors import StackError
from flows.stack.environment import Addresses, inherited
from flows.stack.lock import alone
from flows.stack.process import Record, Service, bury, find, free_port, is_free, launch, wait_ready
from serving import TokenError, find_token

PREFIX = "fleet-"
WORKERS = 2


def token_file(home: Path) -> Path:
    """The control token of this state folder: made on first use, readable by its owner alone.

    Raises:
        StackError: it is no secret any more, or cannot be read.
    """
    path = home / "token"
    if not path.exists():
        beside = _fresh_token(path)
        with suppress(FileExistsError):  # the first of several that start at once wins
            path.hardlink_to(beside)
        beside.unlink()
    try:
        find_token(path)
    except TokenError as error:
        raise StackError(f"{error} Or replace it: 'python -m flows token rotate'.") from error
    return path


def rotate_token(home: Path) -> Path:
    """Replace the control token: fleets and workers read the file at each call, so the old one is refused at once."""
    return _fresh_token(home / "token").replace(home / "token")


def _fresh_token(path: Path) -> Path:
    """A new token in a file beside ``path``."""
    beside = path.with_name(f".token.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch(mode=0o600)
        beside.write_text(secrets.token_urlsafe(32))
    except OSError as error:
        raise StackError(
            f"no token can be written beside {path}: {error.strerror}. Make its folder writable."
        ) from error
    return beside


def start(model: str, home: Path, addresses: Addresses) -> Record:
    """Start the fleet of a model, if it is not running; return when all workers serve.

    Raises:
        StackError: it did not come up; the end of its log is shown.
    """
    with alone(home):
        bury(PREFIX + model, home)  # before ports are chosen
        known = find(home, PREFIX + model)
        port = urlsplit(known.url).port if known else None
        new = service(model, home, addresses, port=port or free_port())
        record = launch(new, home)
    wait_ready(new, record)
    return record


def service(model: str, home: Path, addresses: Addresses, *, port: int) -> Service:
    """The fleet of a model; its workers get the ports that they had before, where these are free."""
    url, state = f"http://127.0.0.1:{port}", home / "fleets" / model
    ports = ",".join(map(str, _worker_ports(state / "status.json")))
    return Service(
        name=PREFIX + model,
        command=(
            *(sys.executable, "-m", "serving", "fleet", "--model", f"{model}@champion", "--worker-ports", ports),
            *("--port", str(port), "--token-file", str(token_file(home)), "--state", str(state)),
        ),
        url=url,
        ready=lambda: _all_ready(url),
        environment=inherited(home, addresses, OMP_NUM_THREADS="1", TREERING_PATIENCE_S="0"),
    )


def _worker_ports(status_file: Path) -> list[int]:
    """The ports of the last fleet, so that clients find its workers again; free ones in place of taken ones."""
    try:
        workers = json.loads(status_file.read_text())["workers"]
        before = [urlsplit(worker["url"]).port for worker in workers]
    except FileNotFoundError:
        before = [None] * WORKERS
    return [port if port and is_free(port) else free_port() for port in before]


def _all_ready(url: str) -> bool:
    try:
        found = httpx.get(url, timeout=2.0, trust_env=False)
        workers = found.json()["workers"] if found.is_success else []
    except (httpx.HTTPError, json.JSONDecodeError):
        return False
    return bool(workers) and all(worker["state"] == "ready" for worker in workers)
