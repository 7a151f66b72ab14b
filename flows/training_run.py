"""The MLflow runs of trainings: each ends as what it was, also when its process was killed, and has its own seed."""

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


def next_seed(model: str, *, server: registry.Server) -> int:
    """A seed that no version and no earlier pipeline run has had, the same for the same history.

    A run whose result the gate refused counts, too: the next one must not train the same weights again.
    """
    versions = server.versions(model)
    params = server.newest_params(model, having="seed")
    return max(versions[-1].number if versions else 0, int(params["seed"]) + 1 if params else 0)
