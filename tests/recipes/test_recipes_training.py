"""The shared training loop: what it may change, and what it leaves alone."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ingest
import recipes
from recipes.training import schedule


@pytest.fixture
def data(tmp_path: Path) -> ingest.Dataset:
    schema = ingest.Schema(
        fields=(ingest.Field(name="x", dtype="float32", shape=(4,)), ingest.Field(name="y", dtype="int64")), label="y"
    )
    values = np.random.default_rng(0).normal(size=(90, 4))
    return ingest.ingest([{"x": values, "y": (values[:, 0] > 0).astype(np.int64)}], schema, tmp_path / "data")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def trained(data: ingest.Dataset, *, seed: int, plan: recipes.Plan | None = None) -> dict[str, Tensor]:
    def loss(model: nn.Module, batch: ingest.Batch) -> tuple[Tensor, Tensor]:
        return recipes.classification(model(batch["x"]), batch["y"])

    model = network()
    plan = plan or recipes.Plan(steps=20, learning_rate=1e-2, batch_rows=16)
    recipes.fit(model, data, loss=loss, plan=plan, seed=seed, report=lambda step: None)
    return model.state_dict()


def test_dropout_follows_the_seed(data: ingest.Dataset) -> None:
    first, torch_moved_on, other = trained(data, seed=1), trained(data, seed=1), trained(data, seed=2)

    assert all(torch.equal(first[name], torch_moved_on[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_training_does_not_depend_on_torchs_generator_nor_move_it(data: ingest.Dataset) -> None:
    def loss(model: nn.Module, batch: ingest.Batch) -> tuple[Tensor, Tensor]:
        return recipes.classification(model(batch["x"]), batch["y"])

    states, following = [], []
    for elsewhere in (5, 6):
        model = network()
        torch.manual_seed(elsewhere)
        plan = recipes.Plan(steps=3, learning_rate=1e-2)
        recipes.fit(model, data, loss=loss, plan=plan, seed=1, report=lambda step: None)
        states.append(model[0].weight.detach())
        following.append(torch.rand(1).item())
        torch.manual_seed(elsewhere)
        assert torch.rand(1).item() == following[-1]

    assert torch.equal(*states)


def test_only_what_the_plan_names_changes(data: ingest.Dataset) -> None:
    plan = recipes.Plan(steps=5, learning_rate=1e-2, trainable=("2.",))

    after = trained(data, seed=1, plan=plan)

    before = network().state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"2.weight", "2.bias"}


def test_a_training_ends_at_the_first_loss_that_is_not_finite(data: ingest.Dataset) -> None:
    heard: list[int] = []
    plan = recipes.Plan(steps=9, learning_rate=1e-2, batch_rows=16)

    def train(model: nn.Module, data: ingest.Dataset, *, plan: recipes.Plan, seed: int, report: recipes.Report) -> None:
        def loss(model: nn.Module, batch: ingest.Batch) -> tuple[Tensor, Tensor]:
            value, accuracy = recipes.classification(model(batch["x"]), batch["y"])
            return value * (float("nan") if batch.position.row == 32 else 1.0), accuracy

        recipes.fit(model, data, loss=loss, plan=plan, seed=seed, report=report)

    own = recipes.Recipe(module_name="own", module=SimpleNamespace(PLANS={"full": plan}, train=train))

    with pytest.raises(recipes.NotFiniteError, match=r"recipe 'own': the loss of plan 'full' at step 3 of 9 is nan"):
        own.train(network(), data, plan="full", seed=0, report=lambda step: heard.append(step.step))

    assert heard == [1, 2]


def test_the_learning_rate_rises_then_falls_and_is_never_zero() -> None:
    rates = [schedule(step, steps=100) for step in range(100)]

    peak = rates.index(max(rates))
    assert 10 <= peak <= 16
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert min(rates) > 0
    assert max(rates) <= 1


@pytest.mark.parametrize("steps", [1, 2])
def test_the_shortest_plans_still_train(steps: int) -> None:
    assert all(schedule(step, steps=steps) > 0 for step in range(steps))
