"""The addresses of the stack and the environment of everything that runs in it.

Servers that the caller's environment names are used and never started or stopped (``foreign``); what lets one into them
stays in the environment and is never written down. No telemetry leaves the machine.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.errors import StackError
from flows.settings import REPOSITORY, stack_name
from flows.stack import foreign
from flows.stack.hook.sitecustomize import ROLE_VARIABLE
from flows.stack.leftovers import temporary
from flows.stack.process import STACK_VARIABLE, free_port, write_whole

DEFAULT_PORTS = {"mlflow": 5000, "prefect": 4200, "victoria": 8428}
SUFFIX = {"mlflow": "", "prefect": "/api", "victoria": ""}
ADDRESSES = "addresses.json"
LAST_ADDRESSES = "addresses.last.json"
# Flow runs and monitors wait for a server that is started again; a fleet looks again by itself every two seconds.
PATIENCE = {"TREERING_PATIENCE_S": "120"}
HOOK = Path(__file__).resolve().parent / "hook"  # docs/decisions/0006-the-guard.md


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the servers are, without credentials.

    Attributes:
        mlflow, prefect: Their addresses.
        victoria: None where the embedded store is used.
        foreign: Which of these fields are other people's servers.
    """

    mlflow: str
    prefect: str
    victoria: str | None
    foreign: tuple[str, ...] = ()

    @property
    def prefect_ui(self) -> str:
        return self.prefect.removesuffix("/api")

    @property
    def shares_prefect(self) -> bool:
        """Whether other stacks may be on the same Prefect server."""
        return "prefect" in self.foreign

    def own(self) -> set[str | None]:
        """The addresses of the servers that the stack starts."""
        return {getattr(self, name) for name in ("mlflow", "prefect", "victoria") if name not in self.foreign}


def choose(home: Path, *, free: bool, with_victoria: bool, running: bool) -> Addresses:
    """The addresses of this state folder: those of the environment, those chosen before, default or free ports.

    A variable that names a server which this state folder started names nobody else's: the shell has it from
    ``python -m flows env``, perhaps of a stack that is down by now.

    Raises:
        ForeignServerError: a server that the environment names cannot be used.
        StackError: the stack runs with another server than the environment names.
    """
    known, last = read(home), _load(home / "stack" / LAST_ADDRESSES)
    own = {address for addresses in (known, last) if addresses for address in addresses.own()}
    if not running:
        own = {address for address in own if address is not None and not foreign.listens(address)}
    given = {name: address for name, address in foreign.given(os.environ).items() if address not in own}
    if known is not None and running:
        _refuse_change(home, known, given)
    else:
        known = _chosen(known, given, free=free, with_victoria=with_victoria)
    for name in known.foreign:
        foreign.check(name, getattr(known, name), os.environ)
    (home / "stack").mkdir(parents=True, exist_ok=True)
    write_whole(home / "stack" / ADDRESSES, json.dumps(asdict(known)))
    return known


def _refuse_change(home: Path, known: Addresses, given: Mapping[str, str]) -> None:
    for name, address in given.items():
        if address != getattr(known, name):
            kind = foreign.KINDS[name]
            raise StackError(
                f"{kind.variable} names {address}, but the stack of '{home}' runs with {kind.title} at "
                f"{getattr(known, name)}. Stop it first, with 'python -m flows down', or unset {kind.variable}."
            )


def _chosen(known: Addresses | None, given: Mapping[str, str], *, free: bool, with_victoria: bool) -> Addresses:
    """Addresses for a start: given ones, else those of own servers of an earlier start, else new ones."""
    earlier = {} if known is None else {name: getattr(known, name) for name in SUFFIX if name not in known.foreign}
    found: dict[str, str | None] = {"victoria": None}
    for name, port in DEFAULT_PORTS.items():
        if name in given:
            found[name] = given[name]
        elif name != "victoria" or with_victoria:
            found[name] = earlier.get(name) or f"http://127.0.0.1:{free_port() if free else port}{SUFFIX[name]}"
    return Addresses(**found, foreign=tuple(sorted(given)))  # type: ignore[arg-type]


def read(home: Path) -> Addresses | None:
    """The addresses that a running stack of this state folder has."""
    return _load(home / "stack" / ADDRESSES)


def _load(file: Path) -> Addresses | None:
    try:
        facts = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    return Addresses(**{**facts, "foreign": tuple(facts["foreign"])})


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
    """The stack is down: the next one chooses anew; a shell may still hold the variables of this one."""
    with suppress(FileNotFoundError):
        (home / "stack" / ADDRESSES).replace(home / "stack" / LAST_ADDRESSES)


def pool(home: Path, addresses: Addresses) -> str:
    """The work pool of this state folder: its own, where several may share a Prefect server."""
    return stack_name(home) if addresses.shares_prefect else "treering-local"


def deployment(home: Path, addresses: Addresses) -> str:
    """What its deployments are called: ``pipeline/default``, or ``pipeline/treering-…`` on a shared server."""
    return stack_name(home) if addresses.shares_prefect else "default"


def variables(home: Path, addresses: Addresses) -> dict[str, str]:
    """What the stack sets for its processes and for a user's shell."""
    victoria = {"TREERING_VICTORIAMETRICS_URL": addresses.victoria} if addresses.victoria else {}
    return {
        "TREERING_HOME": str(home),
        "TREERING_REPOSITORY": str(REPOSITORY),
        "MLFLOW_TRACKING_URI": addresses.mlflow,
        "PREFECT_API_URL": addresses.prefect,
        "PREFECT_HOME": str(home / "prefect"),
        "TREERING_STACK_NAME": stack_name(home),
        "TREERING_POOL": pool(home, addresses),
        "TREERING_DEPLOYMENT": deployment(home, addresses),
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
