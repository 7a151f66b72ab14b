"""Every service of the stack by its name, so that whoever finds one dead can start it again as it was.

What a record on disk does not say (command, environment) is made anew: no secret of an environment is written down.
"""

from pathlib import Path
from urllib.parse import urlsplit

from flows.stack import fleet, mlflow, monitor, prefect_server, prefect_worker, victoria
from flows.stack.environment import Addresses
from flows.stack.process import Record, Service

SERVERS = {"mlflow": mlflow.service, "prefect": prefect_server.service, "victoria-metrics": victoria.service}


def again(record: Record, home: Path, addresses: Addresses) -> Service:
    """The service that a record is of, at the address that it had."""
    if record.name in SERVERS:
        return SERVERS[record.name](home, addresses)
    if record.name == prefect_worker.NAME:
        return prefect_worker.service(home, addresses)
    if record.name.startswith(monitor.PREFIX):
        return monitor.service(record.name.removeprefix(monitor.PREFIX), home, addresses)
    model = record.name.removeprefix(fleet.PREFIX)
    return fleet.service(model, home, addresses, port=urlsplit(record.url).port or 0)
