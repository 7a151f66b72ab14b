"""The local stack: real servers for the pipeline on one machine, and no Prefect import.

``up`` starts MLflow, the Prefect server, VictoriaMetrics where it is installed, the Prefect worker, and a keeper that
starts again whatever of them ends; a fleet joins when the first version is deployed. Servers named by
``MLFLOW_TRACKING_URI``, ``PREFECT_API_URL`` or ``TREERING_VICTORIAMETRICS_URL`` are used as they are, never started and
never stopped. ``down`` stops what this state folder started: workers before servers.

    >>> addresses = stack.up(home, say=print)       # doctest: +SKIP
    >>> stack.down(home, say=print)
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from flows.errors import StackError
from flows.stack import fleet, foreign, guard, keeper, mlflow, monitor, prefect_server, prefect_worker, room, victoria
from flows.stack.environment import (
    Addresses,
    choose,
    deployment,
    forget,
    inherited,
    pool,
    read,
    required,
    variables,
)
from flows.stack.leftovers import sweep
from flows.stack.lock import alone
from flows.stack.process import (
    Record,
    end_strays,
    find,
    put_aside_if_long,
    records,
    stack_processes,
    start_all,
    stop,
    write_whole,
)
from flows.stack.services import SERVERS

__all__ = [
    "Addresses",
    "Record",
    "deployment",
    "down",
    "fleet",
    "guard",
    "inherited",
    "keeper",
    "monitor",
    "pool",
    "read",
    "records",
    "required",
    "resume",
    "room",
    "start_worker",
    "up",
    "variables",
]

Say = Callable[[str], None]
SERVED = "served.json"  # what the last ``down`` stopped serving


def up(home: Path, *, free_ports: bool = False, say: Say) -> Addresses:
    """Start the servers that are not running, at once, and wait until each is ready.

    Args:
        home: The state folder.
        free_ports: Take ports that are free instead of the usual ones.
        say: Hears a line for each server.

    Returns:
        Where they are.

    Raises:
        ForeignServerError: a server that the environment names cannot be used; nothing was started.
        PortInUseError: another program listens on a usual port.
        StackError: a server did not start; the end of its log is shown. Or there is no room for a stack.
    """
    with alone(home):
        if not stack_processes(home):
            sweep(home)
            guard.clear(home)
        room.check(home)
        fleet.token_file(home)
        foreign.take_credentials(os.environ)
        running = any(record.process() for record in records(home))
        addresses = choose(home, free=free_ports, with_victoria=victoria.installed(), running=running)
        for name in addresses.foreign:
            say(f"  {foreign.KINDS[name].title:<18} {getattr(addresses, name)} (yours)")
        if addresses.victoria is None:
            say(f"  {victoria.PROGRAM} is not installed: the monitor keeps its window in memory")
        makers = {"mlflow": mlflow.service, "prefect": prefect_server.service, "victoria": victoria.service}
        services = [
            make(home, addresses)
            for name, make in makers.items()
            if name not in addresses.foreign and getattr(addresses, name) is not None
        ]
        try:
            start_all([(service, urlsplit(service.url).port) for service in services], home, say=say)
        except StackError:
            if not stack_processes(home):
                forget(home)  # or 'env' would name servers that are not this stack's
            raise
        return addresses


def start_worker(home: Path, addresses: Addresses, *, before: Callable[[], object], say: Say) -> None:
    """Start the Prefect worker, if it is not running; its pool must exist. ``before`` runs just before a start.

    The keeper starts last: from now on what ends is started again.
    """
    with alone(home):
        service = prefect_worker.service(home, addresses)
        put_aside_if_long(home / "stack" / "flow-runs.log")
        if find(home, service.name) is None:
            before()
        start_all([(service, None), (keeper.service(home, addresses), None)], home, say=say)


def resume(home: Path, addresses: Addresses, *, say: Say) -> None:
    """Serve and watch again what ``down`` stopped; needs the servers.

    Raises:
        StackError: a fleet or a monitor did not come up; the next ``up`` does not try again.
    """
    file = home / "stack" / SERVED
    served = json.loads(file.read_text()) if file.exists() else []
    file.unlink(missing_ok=True)
    starts = ((fleet.PREFIX, fleet.start), (monitor.PREFIX, monitor.start))  # what is watched must be served
    for prefix, begin in starts:
        for name in (name for name in served if name.startswith(prefix)):
            record = begin(name.removeprefix(prefix), home, addresses)
            say(f"  {name:<18} {record.url}".rstrip())


def down(home: Path, *, comes_back: bool = True, say: Say) -> bool:
    """Stop everything that this state folder started, servers after all that speaks to them.

    Args:
        home: The state folder.
        comes_back: Whether ``resume`` is to serve again what was served.
        say: Hears a line for each process.

    Returns:
        Whether there was anything to stop.
    """
    with alone(home):
        found = sorted(records(home), key=lambda record: record.name in SERVERS)
        served = [record.name for record in found if record.name.startswith((fleet.PREFIX, monitor.PREFIX))]
        if comes_back and served:
            write_whole(home / "stack" / SERVED, json.dumps(served))
        for record in found:
            stop(record, home)
            say(f"  {record.name:<18} stopped")
        strays = end_strays(home)
        sweep(home)
        if strays:
            say(f"  {strays} flow runs or other processes ended with it")
        forget(home)
        return bool(found or strays)
