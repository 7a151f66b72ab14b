"""The local stack: real servers for the pipeline on one machine, and no Prefect import.

``up`` starts MLflow, the Prefect server, VictoriaMetrics where it is installed, the Prefect worker, and a keeper that
starts again whatever of them ends; a fleet joins when the first version is deployed. Servers named by
``MLFLOW_TRACKING_URI``, ``PREFECT_API_URL`` or ``TREERING_VICTORIAMETRICS_URL`` are used as they are, never started and
never stopped. ``down`` stops what this state folder started: workers before servers.

    >>> addresses = stack.up(home, say=print)       # doctest: +SKIP
    >>> stack.down(home, say=print)
"""

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from flows.stack import fleet, guard, keeper, mlflow, monitor, prefect_server, prefect_worker, room, victoria
from flows.stack.environment import Addresses, choose, forget, inherited, read, required, variables
from flows.stack.leftovers import sweep
from flows.stack.lock import alone
from flows.stack.process import Record, Service, end_strays, find, records, stack_processes, start_all, stop
from flows.stack.services import SERVERS

__all__ = [
    "Addresses",
    "Record",
    "down",
    "fleet",
    "guard",
    "inherited",
    "keeper",
    "monitor",
    "read",
    "records",
    "required",
    "room",
    "start_worker",
    "up",
    "variables",
]

Say = Callable[[str], None]


def up(home: Path, *, free_ports: bool = False, say: Say) -> Addresses:
    """Start the servers that are not running, at once, and wait until each is ready.

    Args:
        home: The state folder.
        free_ports: Take ports that are free instead of the usual ones.
        say: Hears a line for each server.

    Returns:
        Where they are.

    Raises:
        PortInUseError: another program listens on a usual port.
        StackError: a server did not start; the end of its log is shown. Or there is no room for a stack.
    """
    with alone(home):
        if not stack_processes(home):
            sweep(home)
            guard.clear(home)
        room.check(home)
        fleet.token_file(home)
        addresses = choose(home, free=free_ports, with_victoria=victoria.installed())
        if addresses.victoria is None:
            say(f"  {victoria.PROGRAM} is not installed: the monitor keeps its window in memory")
        services = [
            _where_not_given("MLFLOW_TRACKING_URI", mlflow.service(home, addresses)),
            _where_not_given("PREFECT_API_URL", prefect_server.service(home, addresses)),
        ]
        if addresses.victoria is not None:
            services.append(_where_not_given("TREERING_VICTORIAMETRICS_URL", victoria.service(home, addresses)))
        start_all([(service, urlsplit(service.url).port) for service in services if service], home, say=say)
        return addresses


def start_worker(home: Path, addresses: Addresses, *, before: Callable[[], object], say: Say) -> None:
    """Start the Prefect worker, if it is not running; its pool must exist. ``before`` runs just before a start.

    The keeper starts last: from now on what ends is started again.
    """
    with alone(home):
        service = prefect_worker.service(home, addresses)
        if find(home, service.name) is None:
            before()
        start_all([(service, None), (keeper.service(home, addresses), None)], home, say=say)


def down(home: Path, *, say: Say) -> None:
    """Stop everything that this state folder started: servers after all that speaks to them."""
    with alone(home):
        for record in sorted(records(home), key=lambda record: record.name in SERVERS):
            stop(record, home)
            say(f"  {record.name:<18} stopped")
        strays = end_strays(home)
        sweep(home)
        if strays:
            say(f"  {strays} flow runs or other processes ended with it")
        forget(home)


def _where_not_given(variable: str, service: Service) -> Service | None:
    return None if os.environ.get(variable) else service
