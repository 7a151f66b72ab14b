"""Runs whose process died: marked as crashed, so that no page shows them running.

Prefect learns that a run's process was killed from the worker that started it. When the worker was killed too, or for
the subflows of a killed run, nobody tells it; here the processes of this machine are asked.
"""

from uuid import UUID

import psutil
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Crashed

from flows import stack
from flows.settings import home

_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"  # Prefect sets it for the process of each run
_UNFINISHED = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
_BROKEN_OFF = [StateType.CRASHED, StateType.CANCELLED, StateType.FAILED]


def settle(*, worker_lives: bool) -> int:
    """Mark what died as crashed; return how many runs that were.

    Args:
        worker_lives: Then a pending run may be about to start, and is left alone.
    """
    pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[stack.pool(home(), stack.required(home()))]))
    states = [StateType.RUNNING] if worker_lives else _UNFINISHED
    with get_client(sync_client=True) as client:
        unfinished = client.read_flow_runs(flow_run_filter=_in(states), work_pool_filter=pool)
        living = _living()
        dead = [run for run in unfinished if run.id not in living]
        broken = client.read_flow_runs(
            flow_run_filter=_in(_BROKEN_OFF), work_pool_filter=pool, sort=FlowRunSort.START_TIME_DESC
        )
        return _mark(client, dead) + _mark_children(client, [*dead, *broken])


def _living() -> set[UUID]:
    """The runs that have a process on this machine."""
    found = set()
    for process in psutil.process_iter():
        try:
            text = process.environ().get(_RUN_VARIABLE)
        except (psutil.Error, OSError):
            continue  # it ended, or is another user's
        if text:
            found.add(UUID(text))
    return found


def _mark(client: SyncPrefectClient, runs: list[FlowRun]) -> int:
    for run in runs:
        client.set_flow_run_state(run.id, Crashed(message="its process was killed"), force=True)
    return len(runs)


def _mark_children(client: SyncPrefectClient, parents: list[FlowRun]) -> int:
    """Mark the unfinished subflows of runs that ended before them, and theirs."""
    count = 0
    while parents:
        chosen = _in(_UNFINISHED)
        chosen.parent_flow_run_id = FlowRunFilterParentFlowRunId(any_=[run.id for run in parents])
        parents = client.read_flow_runs(flow_run_filter=chosen)
        count += _mark(client, parents)
    return count


def _in(states: list[StateType]) -> FlowRunFilter:
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states)))
