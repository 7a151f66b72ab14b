"""The Prefect worker of the stack: takes runs from the process pool and starts them in this checkout."""

import sys
from pathlib import Path

import httpx

from flows.settings import REPOSITORY
from flows.stack.environment import Addresses, inherited
from flows.stack.process import Service

NAME = "prefect-worker"
POOL = "treering-local"


def service(home: Path, addresses: Addresses) -> Service:
    """A worker of type process; polls each second, since a rollback may wait for it."""
    return Service(
        name=NAME,
        command=(
            *(sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"),
            *("--name", "treering", "--no-create-pool-if-not-found"),
        ),
        url=f"{addresses.prefect_ui}/work-pools/work-pool/{POOL}",
        ready=lambda: _is_online(addresses.prefect),
        environment=inherited(home, addresses, PREFECT_WORKER_QUERY_SECONDS="1", TREERING_REPOSITORY=str(REPOSITORY)),
    )


def _is_online(api: str) -> bool:
    try:
        answer = httpx.post(f"{api}/work_pools/{POOL}/workers/filter", json={}, timeout=2.0, trust_env=False)
        return answer.is_success and any(worker["status"] == "ONLINE" for worker in answer.json())
    except httpx.HTTPError:
        return False
