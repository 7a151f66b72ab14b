"""A training that several processes run together goes on, bit for bit, from a checkpoint; also with other shards."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ckpt
import ckpt.distributed
from tests.ckpt.equality import same
from tests.ckpt.gloo import run
from tests.ckpt.sharded import gathered, meshes


class Small(nn.Module):
    """Odd sizes, a buffer, and an output layer tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.inner = nn.Linear(5, 5)
        self.norm = nn.BatchNorm1d(5)
        self.out = nn.Linear(5, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(self.inner(self.embedding(rows)).relu())
        return self.out(hidden)


def training(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A sharded model whose numbers depend on the seed, and its optimizer."""
    torch.manual_seed(seed)
    model = Small()
    mesh, _ = meshes()
    fully_shard(model.inner, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1 / (1 + seed))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    """Train on the same rows everywhere, so that the number of processes changes nothing but rounding."""
    for number in range(count):
        rows = torch.arange(4) + number % 3
        nn.functional.cross_entropy(model(rows), rows).backward()
        optimizer.step()
        optimizer.zero_grad()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parts = get_state_dict(model, optimizer)
    return {"model": parts[0], "optimizer": parts[1], "step": 3}


def train_and_save(rank: int, path: Path) -> tuple[Any, Any]:
    """The whole state as it is saved, and after two steps more."""
    model, optimizer = training(0)
    step(model, optimizer, 3)
    saved = gathered(state_of(model, optimizer))
    ckpt.distributed.save(state_of(model, optimizer), path)
    step(model, optimizer, 2)
    return saved, gathered(state_of(model, optimizer))


def load_and_train(rank: int, path: Path) -> tuple[Any, Any]:
    """From another beginning: the whole state as it is loaded, and after two steps more."""
    model, optimizer = training(1)
    state = state_of(model, optimizer)
    ckpt.distributed.load(state, path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    loaded = gathered(state_of(model, optimizer))
    step(model, optimizer, 2)
    return loaded, gathered(state_of(model, optimizer))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder = tmp_path_factory.mktemp("trained")
    (saved, after), _ = run(2, train_and_save, folder, folder / "c")
    return folder, saved, after


def test_a_sharded_model_and_its_optimizer_are_one_checkpoint(trained: tuple[Path, Any, Any]) -> None:
    folder, saved, _ = trained

    manifest = ckpt.read_manifest(folder / "c")

    assert same(ckpt.load(folder / "c"), saved)
    assert manifest.storages_of("model/embedding.weight") == manifest.storages_of("model/out.weight")
    assert len(manifest.pieces_of["optimizer/state/inner.weight/exp_avg"]) == 2


def test_a_training_goes_on_bit_for_bit(trained: tuple[Path, Any, Any], tmp_path: Path) -> None:
    folder, saved, after = trained

    (loaded, later), _ = run(2, load_and_train, tmp_path, folder / "c")

    assert same(loaded, saved)
    assert same(later, after)


def test_four_go_on_with_what_two_have_saved(trained: tuple[Path, Any, Any], tmp_path: Path) -> None:
    folder, saved, _ = trained

    outcomes = run(4, load_and_train, tmp_path, folder / "c")

    assert same(outcomes[0][0], saved)


def parallel(seed: int) -> nn.Module:
    """Two layers cut between two processes by columns and by rows, each part sharded between two again."""
    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 5))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return model


def save_and_load_parallel(rank: int, path: Path) -> tuple[bool, list[str]]:
    """Whether another model has the numbers then, and how its first weight is placed."""
    model, other = parallel(0), parallel(1)
    ckpt.distributed.save(model.state_dict(), path)
    state = other.state_dict()
    ckpt.distributed.load(state, path)
    placed = [type(placement).__name__ for placement in state["0.weight"].placements]
    return all(
        torch.equal(state[name].full_tensor(), value.full_tensor()) for name, value in model.state_dict().items()
    ), placed


def test_tensor_parallel_and_sharded_at_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 5)).state_dict()

    outcomes = run(4, save_and_load_parallel, tmp_path, tmp_path / "c")

    assert outcomes == [(True, ["_StridedShard", "Shard"])] * 4
    assert same(dict(ckpt.load(tmp_path / "c")), dict(alone))


def sharded_tensors(rank: int, path: Path) -> bool:
    """The kind that FSDP1 gives."""
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{other}/cpu" for other in range(2)])
    saved = sharded_tensor.rand(spec, 5, 3)
    ckpt.distributed.save({"w": saved}, path)
    loaded = sharded_tensor.zeros(spec, 5, 3)
    ckpt.distributed.load({"w": loaded}, path)
    pairs = zip(saved.local_shards(), loaded.local_shards(), strict=True)
    return all(torch.equal(one.tensor, other.tensor) for one, other in pairs)


def test_sharded_tensors_are_saved_and_loaded(tmp_path: Path) -> None:
    assert run(2, sharded_tensors, tmp_path, tmp_path / "c") == [True, True]
    assert ckpt.load(tmp_path / "c")["w"].shape == (5, 3)
