"""The addresses of the stack and the environment of everything that runs in it.

Servers that the caller's environment names are used and never started or stopped. No telemetry leaves the machine.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.errors import StackError
from flows.settings import REPOSITORY
from flows.stack.hook.sitecustomize import ROLE_VARIABLE
from flows.stack.leftovers import temporary
from flows.stack.process import STACK_VARIABLE, free_port, write_whole

DEFAULT_PORTS = {"mlflow": 5000, "prefect": 4200, "victoria-metrics": 8428}
ADDRESSES = "addresses.json"
HOOK = Path(__file__).resolve().parent / "hook"  # docs/decisions/0006-the-guard.md


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the servers are; ``victoria`` is None where the embedded store is used."""

    mlflow: str
    prefect: str
    victoria: str | None

    @property
    def prefect_ui(self) -> str:
        return self.prefect.removesuffix("/api")


def choose(home: Path, *, free: bool, with_victoria: bool) -> Addresses:
    """The addresses of this state folder: those of the environment, those chosen before, default or free ports."""
    known = read(home)
    if known is not None:
        return known
    ports = {name: free_port() if free else port for name, port in DEFAULT_PORTS.items()}
    victoria = f"http://127.0.0.1:{ports['victoria-metrics']}" if with_victoria else None
    addresses = Addresses(
        mlflow=os.environ.get("MLFLOW_TRACKING_URI") or f"http://127.0.0.1:{ports['mlflow']}",
        prefect=os.environ.get("PREFECT_API_URL") or f"http://127.0.0.1:{ports['prefect']}/api",
        victoria=os.environ.get("TREERING_VICTORIAMETRICS_URL") or victoria,
    )
    (home / "stack").mkdir(parents=True, exist_ok=True)
    write_whole(home / "stack" / ADDRESSES, json.dumps(asdict(addresses)))
    return addresses


def read(home: Path) -> Addresses | None:
    """The addresses that a running stack of this state folder has."""
    try:
        return Addresses(**json.loads((home / "stack" / ADDRESSES).read_text()))
    except FileNotFoundError:
        return None


def required(home: Path) -> Addresses:
    """The addresses that the running stack of this state folder has.

    Raises:
        StackError: none runs.
    """
    addresses = read(home)
    if addresses is None:
        raise StackError(f"no stack runs in {home}: expected the one of 'python -m flows up'. Start it first.")
    return addresses


def forget(home: Path) -> None:
    """The stack is down: the next one chooses anew."""
    (home / "stack" / ADDRESSES).unlink(missing_ok=True)


def variables(home: Path, addresses: Addresses) -> dict[str, str]:
    """What the stack sets for its processes and for a user's shell."""
    victoria = {"TREERING_VICTORIAMETRICS_URL": addresses.victoria} if addresses.victoria else {}
    return {
        "TREERING_HOME": str(home),
        "TREERING_REPOSITORY": str(REPOSITORY),
        "MLFLOW_TRACKING_URI": addresses.mlflow,
        "PREFECT_API_URL": addresses.prefect,
        "PREFECT_HOME": str(home / "prefect"),
        **victoria,
        # Prefect keeps the exception of each failed run in its storage, as a pickle unless told otherwise.
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def inherited(home: Path, addresses: Addresses, **more: str) -> Mapping[str, str]:
    """The environment of a process of the stack: the caller's, the stack's, its own; this Python first, guarded."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    own = {
        STACK_VARIABLE: str(home),
        ROLE_VARIABLE: "flows",
        "PATH": path,
        "PYTHONPATH": _python_path(),
        "TMPDIR": str(temporary(home)),
    }
    # What Prefect tells a flow run's process about its run is not for what that process starts.
    caller = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
    return {**caller, **variables(home, addresses), **own, **more}


def _python_path() -> str:
    """The guard before anything else, this checkout, the caller's own."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(HOOK), str(REPOSITORY), *filter(None, given)]))
