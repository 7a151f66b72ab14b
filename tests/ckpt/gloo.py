"""Real processes that talk through gloo: each runs one function, and what it raises reaches the test.

They are forked by a server that has imported torch once, so that a scenario costs the processes and not the imports.
"""

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.ckpt.gloo", "ckpt.distributed", "torch.distributed.fsdp"])
_LIMIT_S = 240  # of one scenario: nothing waits for it but a test that hangs

Scenario = Callable[..., object]  # gets its rank, then the arguments; what it returns must be picklable


def run(processes: int, scenario: Scenario, folder: Path, *arguments: Any, dying: bool = False) -> list[Any]:
    """Run a function of a module in as many processes; give back what each returns, in the order of ranks.

    Args:
        processes: How many.
        scenario: Called with (rank, *arguments) where ``torch.distributed`` is initialised.
        folder: Of this test; where the processes meet.
        arguments: Further ones.
        dying: Whether processes may end without a result: it is None then.
    """
    meeting = folder / f"meeting-{len(list(folder.glob('meeting-*')))}"
    pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(processes)]
    children = [
        _CONTEXT.Process(target=_child, args=(rank, processes, meeting, pipe, scenario, arguments, dying))
        for rank, (_, pipe) in enumerate(pipes)
    ]
    for child in children:
        child.start()
    for _, pipe in pipes:
        pipe.close()
    answers = [_answer(pipe) for pipe, _ in pipes]
    for child in children:
        child.join(_LIMIT_S)
        if child.is_alive():
            child.kill()
            child.join()
        child.close()
    failures = [str(text) for text, _ in answers if text]
    assert not failures, "\n".join(failures)
    assert dying or all(text is not None for text, _ in answers), "a process ended without a result"
    return [value for _, value in answers]


def _answer(pipe: Connection) -> tuple[str | None, Any]:
    with pipe, suppress(EOFError):
        # Not recv: torch has taught that to send tensors by a descriptor of a process, which ends before.
        return pickle.loads(pipe.recv_bytes()) if pipe.poll(_LIMIT_S) else ("a process did not end", None)  # noqa: S301
    return None, None


def _child(
    rank: int,
    processes: int,
    meeting: Path,
    pipe: Connection,
    scenario: Scenario,
    arguments: tuple[Any, ...],
    dying: bool,
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=processes,
            timeout=timedelta(seconds=_LIMIT_S),
        )
        value = scenario(rank, *arguments)
        if not dying:
            dist.barrier()
        pipe.send_bytes(pickle.dumps(("", value)))
    except BaseException:  # noqa: BLE001 - the edge of the process
        pipe.send_bytes(pickle.dumps((f"rank {rank}: {traceback.format_exc()}", None)))
    finally:
        pipe.close()
        os._exit(0)  # without what libraries do at the end: a process that lost its peers would wait for them
