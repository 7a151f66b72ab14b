"""A training state that several processes hold together, and the same state whole."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from ckpt.format.dtypes import bits

Place = Callable[[str, torch.Tensor], torch.Tensor]


def whole_state() -> dict[Any, Any]:
    """Every kind of tensor and value; names say how :func:`spread` places them."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    tied = numbers(8, 3)
    return {
        "model": OrderedDict(
            rows=numbers(8, 5),
            columns=numbers(6, 10).to(torch.bfloat16),
            uneven=numbers(10, 3).to(torch.float64),
            fewer=numbers(3, 4),
            one=numbers(1, 7),
            grid=torch.arange(7 * 9, dtype=torch.int32).reshape(7, 9),
            copies=numbers(5, 5),
            hybrid=numbers(9, 2),
            packed=numbers(8, 4).to(torch.float8_e4m3fn),
            tied=tied,
            untied=tied,
        ),
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0), "rows": numbers(8, 5)}, 7: {"step": torch.tensor(4.0)}},
            "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 7]}],
        },
        5: ["five", None, True, 2**70],
        "list": [numbers(4), {"rows": numbers(4, 2)}],
        "random": np.arange(6, dtype=np.uint32),
        "empty": torch.empty(0, 3),
        "text": "hello",
    }


def spread(state: Any, place: Place, name: str = "") -> Any:
    """The state with its tensors placed; tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}

    def inner(value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in made:
                made[id(value)] = place(name, value)
            return made[id(value)].detach()
        if isinstance(value, dict):
            return type(value)((key, inner(item, str(key))) for key, item in value.items())
        if isinstance(value, list):
            return [inner(item, name) for item in value]
        return value

    return inner(state, name)


def placing(meshes: tuple[DeviceMesh, DeviceMesh]) -> Place:
    """Where the tensors of :func:`whole_state` lie, on a mesh of one and one of two dimensions."""
    line, square = meshes
    placements: dict[str, tuple[DeviceMesh, list[Placement]]] = {
        "rows": (line, [Shard(0)]),
        "columns": (line, [Shard(1)]),
        "uneven": (line, [Shard(0)]),
        "fewer": (line, [Shard(0)]),
        "one": (line, [Shard(0)]),
        "grid": (square, [Shard(0), Shard(1)]),
        "copies": (line, [Replicate()]),
        "hybrid": (square, [Replicate(), Shard(0)]),
        "packed": (line, [Shard(0)]),
        "tied": (line, [Shard(0)]),
    }

    def place(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in placements:
            return tensor.clone()
        mesh, how = placements[name]
        return local_of(tensor, mesh, how)

    return place


def local_of(tensor: torch.Tensor, mesh: DeviceMesh, how: list[Placement]) -> DTensor:
    """A DTensor whose shards are cut from a tensor that each process has, without a message."""
    return distribute_tensor(tensor, mesh, how, src_data_rank=None)


def meshes() -> tuple[DeviceMesh, DeviceMesh]:
    """All processes in a line, and as a rectangle of two rows (or one)."""
    size = dist.get_world_size()
    ranks = torch.arange(size)
    return DeviceMesh("cpu", ranks), DeviceMesh("cpu", ranks.reshape(max(size // 2, 1), -1))


def gathered(state: Any) -> Any:
    """The state with every DTensor whole, put together from what each process says that it has."""
    if isinstance(state, DTensor):
        (box,) = state.__create_chunk_list__()
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (box.offsets, bits(state.to_local()).numpy()))
        whole = torch.empty(state.shape, dtype=state.dtype)
        for offsets, local in parts:
            index = (slice(start, start + size) for start, size in zip(offsets, local.shape, strict=True))
            bits(whole[tuple(index)]).copy_(torch.from_numpy(local))
        return whole
    if isinstance(state, dict):
        return type(state)((key, gathered(value)) for key, value in state.items())
    if isinstance(state, list):
        return [gathered(value) for value in state]
    return state.clone() if isinstance(state, torch.Tensor) else state


def emptied(state: Any, made: dict[int, Any] | None = None) -> Any:
    """The state with other numbers in its tensors and no values beside them: something to load into; ties are kept."""
    known = {} if made is None else made
    if isinstance(state, torch.Tensor):
        local = state.to_local() if isinstance(state, DTensor) else state
        other = torch.full_like(local, 1)
        fresh = _with_local(state, other) if isinstance(state, DTensor) else other
        return known.setdefault(local.untyped_storage()._cdata, fresh)
    if isinstance(state, np.ndarray):
        return np.zeros_like(state)
    if isinstance(state, dict):
        return type(state)((key, emptied(value, known)) for key, value in state.items())
    if isinstance(state, list):
        return [emptied(value, known) for value in state]
    return None


def _with_local(state: DTensor, local: torch.Tensor) -> DTensor:
    return DTensor.from_local(local, state.device_mesh, state.placements, shape=state.shape, stride=state.stride())
