"""The MLflow run of a training: it ends as what it was, also when its process was killed."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

from prefect import get_client
from prefect.exceptions import ObjectNotFound

import registry


@contextmanager
def ending(server: registry.Server, run_id: str) -> Iterator[None]:
    """End the run as finished or failed; when MLflow is away as well, that is left to :func:`close_left`."""
    try:
        yield
    except BaseException:
        with suppress(registry.RegistryError):
            server.end_run(run_id, status="FAILED")
        raise
    server.end_run(run_id, status="FINISHED")


def close_left(model: str, *, server: registry.Server) -> None:
    """Mark a model's runs as killed where MLflow shows them running and their flow run has ended."""
    with get_client(sync_client=True) as client:
        for run_id, flow_run_id in server.unfinished_runs(model).items():
            try:
                state = client.read_flow_run(UUID(flow_run_id)).state
            except (ObjectNotFound, ValueError):
                continue  # of another Prefect server, or of none: not ours to judge
            if state is not None and state.is_final():
                server.end_run(run_id, status="KILLED")
