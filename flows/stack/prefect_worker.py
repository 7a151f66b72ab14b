"""The Prefect worker of the stack: takes runs from the process pool and starts them in this checkout."""

import os
import sys
from pathlib import Path

import httpx

from flows.settings import REPOSITORY
from flows.stack import foreign
from flows.stack.environment import PATIENCE, Addresses, inherited, pool
from flows.stack.process import Service

NAME = "prefect-worker"


def service(home: Path, addresses: Addresses) -> Service:
    """A worker of type process; polls each second, since a rollback may wait for it."""
    name = pool(home, addresses)
    return Service(
        name=NAME,
        command=(
            *(sys.executable, "-m", "prefect", "worker", "start", "--pool", name, "--type", "process"),
            *("--name", "treering", "--no-create-pool-if-not-found"),
        ),
        url=f"{addresses.prefect_ui}/work-pools/work-pool/{name}",
        ready=lambda: _is_online(addresses.prefect, name),
        environment=inherited(
            home,
            addresses,
            PREFECT_WORKER_QUERY_SECONDS="1",
            PREFECT_LOGGING_EXTRA_LOGGERS="registry,monitors,flows",  # what they wait for stands in the log of the run
            TREERING_REPOSITORY=str(REPOSITORY),
            **PATIENCE,
        ),
    )


def _is_online(api: str, pool: str) -> bool:
    authorization = foreign.KINDS["prefect"].authorization(os.environ)
    headers = {"Authorization": authorization} if authorization else {}
    try:
        answer = httpx.post(f"{api}/work_pools/{pool}/workers/filter", json={}, headers=headers, timeout=2.0)
        return answer.is_success and any(worker["status"] == "ONLINE" for worker in answer.json())
    except httpx.HTTPError:
        return False
