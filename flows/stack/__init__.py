"""The local stack: real servers for the pipeline on one machine, and no Prefect import.

``up`` starts MLflow, the Prefect server, VictoriaMetrics where it is installed, and the Prefect worker; a fleet joins
when the first version is deployed. Servers named by ``MLFLOW_TRACKING_URI``, ``PREFECT_API_URL`` or
``TREERING_VICTORIAMETRICS_URL`` are used as they are, never started and never stopped. ``down`` stops what this state
folder started: workers before servers.

    >>> addresses = stack.up(home, say=print)       # doctest: +SKIP
    >>> stack.down(home, say=print)
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from flows.stack import fleet, mlflow, prefect_server, prefect_worker, victoria
from flows.stack.environment import Addresses, choose, forget, inherited, read, variables
from flows.stack.process import Record, Service, end_strays, find, records, start_all, stop

__all__ = ["Addresses", "Record", "down", "fleet", "inherited", "read", "records", "start_worker", "up", "variables"]

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
        StackError: a server did not start; the end of its log is shown.
    """
    with _alone(home):
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
        fleet.token_file(home)
        return addresses


def start_worker(home: Path, addresses: Addresses, *, before: Callable[[], object], say: Say) -> None:
    """Start the Prefect worker, if it is not running; its pool must exist. ``before`` runs just before a start."""
    with _alone(home):
        service = prefect_worker.service(home, addresses)
        if find(home, service.name) is None:
            before()
        start_all([(service, None)], home, say=say)


def down(home: Path, *, say: Say) -> None:
    """Stop everything that this state folder started: the last started first."""
    with _alone(home):
        for record in reversed(records(home)):
            stop(record, home)
            say(f"  {record.name:<18} stopped")
        strays = end_strays(home)
        if strays:
            say(f"  {strays} flow runs or other processes ended with it")
        forget(home)


def _where_not_given(variable: str, service: Service) -> Service | None:
    return None if os.environ.get(variable) else service


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One up or down at a time for a state folder."""
    (home / "stack").mkdir(parents=True, exist_ok=True)
    with open(home / "stack" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
