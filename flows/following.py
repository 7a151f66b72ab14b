"""Start runs of a deployment and follow them in a terminal: their logs as they come, and how they ended."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    LogFilter,
    LogFilterFlowRunId,
    LogFilterLevel,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import LogSort
from prefect.deployments import run_deployment

POLL_S = 0.5
LAST_LINES_S = 2.5  # Prefect sends log lines in batches every 2 s
INFO = 20
PAGE = 200

Say = Callable[[str], None]


def run_all(deployment: str, runs: Sequence[tuple[dict[str, Any], Say]]) -> list[FlowRun]:
    """Run a deployment several times side by side, to the end of the last.

    Args:
        deployment: ``pipeline/default``.
        runs: For each run the flow's parameters, and who hears the log lines of it and of its subflows.

    Returns:
        The finished runs, in order; ask ``run.state.is_completed()``.
    """

    async def gathered() -> list[FlowRun]:
        return await asyncio.gather(*(_run(deployment, parameters, say) for parameters, say in runs))

    return asyncio.run(gathered())


async def _run(deployment: str, parameters: dict[str, Any], say: Say) -> FlowRun:
    started: FlowRun = await run_deployment(deployment, parameters=parameters, timeout=0)  # type: ignore[misc]
    async with get_client() as client:
        seen: dict[UUID, int] = {}
        while True:
            current = await client.read_flow_run(started.id)
            ended = current.state is not None and current.state.is_final()
            await asyncio.sleep(LAST_LINES_S if ended else POLL_S)
            for run_id in [started.id, *await _children(client, started.id)]:
                seen[run_id] = await _tell(client, run_id, seen.get(run_id, 0), say)
            if ended:
                return current


async def _children(client: PrefectClient, parent: UUID) -> list[UUID]:
    """Subflow runs, in order of their start."""
    chosen = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent]))
    runs = await client.read_flow_runs(flow_run_filter=chosen)
    return [run.id for run in sorted(runs, key=lambda run: str(run.created))]


async def _tell(client: PrefectClient, run_id: UUID, seen: int, say: Say) -> int:
    """Say the lines of a run that were not said yet; return how many there are."""
    chosen = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]), level=LogFilterLevel(ge_=INFO))
    lines = await client.read_logs(chosen, limit=PAGE, offset=seen, sort=LogSort.TIMESTAMP_ASC)
    for line in lines:
        say(f"{line.timestamp:%H:%M:%S}  {line.message}")
    return seen + len(lines)
