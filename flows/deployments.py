"""The deployments of ``prefect.yaml`` in a Prefect server: the work pool, and every flow of this package.

The pool is made through the API with the bundled template: ``prefect work-pool create`` would ask the network for its
templates first.
"""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.workers.process import ProcessWorker

from flows.errors import StackError
from flows.settings import REPOSITORY


def register(environment: Mapping[str, str]) -> None:
    """Make the pool if it is not there, and deploy everything; doing it again changes nothing.

    Args:
        environment: Of the process that deploys; the names in ``prefect.yaml`` are its variables.

    Raises:
        StackError: Prefect refused; its words are shown.
    """
    asyncio.run(_make_pool(environment["TREERING_POOL"]))
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        env=dict(environment),
    )
    if done.returncode != 0:
        raise StackError(
            f"'prefect deploy --all' failed with {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        )


async def _make_pool(pool: str) -> None:
    template = ProcessWorker.get_default_base_job_template()
    async with get_client() as client:
        with suppress(ObjectAlreadyExists):  # made by an earlier start
            await client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
