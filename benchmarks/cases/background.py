"""How long a training step is held up by a save that goes on in the background: the second one, memory being warm."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

import ckpt
from benchmarks.cases.weights import mixed_state
from benchmarks.plan import Call


@contextmanager
def treering(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int) -> Iterator[Call]:
    """The caller's part of the second ``save_async``; the first has ended."""
    state = mixed_state(size_bytes, tensor_bytes=tensor_bytes)
    ckpt.save_async(state, work / "first").result()
    pending: list[ckpt.Pending] = []
    yield Call(run=lambda: pending.append(ckpt.save_async(state, work / "second")))
    pending[0].result()


@contextmanager
def copy_alone(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int) -> Iterator[Call]:
    """``copy_`` of every tensor into one that was written before."""
    state = mixed_state(size_bytes, tensor_bytes=tensor_bytes)
    copies = {name: tensor.clone() for name, tensor in state.items()}

    def run() -> None:
        for name, tensor in state.items():
            copies[name].copy_(tensor)

    yield Call(run=run)


@contextmanager
def with_dcp(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int) -> Iterator[Call]:
    """The caller's part of the second ``dcp.async_save``; the first has ended."""
    state: dict[str, Any] = dict(mixed_state(size_bytes, tensor_bytes=tensor_bytes))
    dist.init_process_group("gloo", init_method=f"file://{work / 'rendezvous'}", rank=0, world_size=1)
    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    stager = DefaultStager(options)  # ours as well: it keeps the memory of its copies

    def save(name: str) -> Any:
        return async_save(state, checkpoint_id=work / name, async_stager=stager)

    save("first").result()
    pending: list[Any] = []
    yield Call(run=lambda: pending.append(save("second")))
    pending[0].result()
    stager.close()
    dist.destroy_process_group()
