"""The shipped recipes on their real data: they learn, repeat bit for bit, and notice when labels teach nothing."""

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ingest
import recipes


@dataclass(frozen=True)
class Trained:
    recipe: recipes.Recipe
    train: ingest.Dataset
    held_out: ingest.Dataset
    model: nn.Module
    steps: list[recipes.Step]

    def margin(self, model: nn.Module) -> float:
        with torch.no_grad():
            best, second = model(*self.recipe.inputs(self.held_out)).topk(2, dim=1).values.T
        return float((best - second).mean())

    def tuned(self, plan: str) -> nn.Module:
        model = copy.deepcopy(self.model)
        self.recipe.train(model, self.train, plan=plan, seed=1, report=lambda step: None)
        return model


def trained(module_name: str, folder: Path) -> Trained:
    recipe = recipes.load(module_name)
    data = ingest.ingest(recipe.rows(), recipe.schema, folder / recipe.name)
    train, held_out = data.split(held_out=0.1)
    model = recipe.build(seed=0)
    steps: list[recipes.Step] = []
    recipe.train(model, train, plan="full", seed=0, report=steps.append)
    return Trained(recipe=recipe, train=train, held_out=held_out, model=model, steps=steps)


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Trained:
    return trained("recipes.mnist", tmp_path_factory.mktemp("mnist"))


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Trained:
    return trained("recipes.wine", tmp_path_factory.mktemp("wine"))


def changed(before: nn.Module, after: nn.Module) -> set[str]:
    state = after.state_dict()
    return {name for name, tensor in before.state_dict().items() if not torch.equal(tensor, state[name])}


def test_mnist_is_the_five_thousand_digits_and_none_is_rejected(mnist: Trained) -> None:
    index = mnist.train.index

    assert (index.rows, index.rejected) == (5000, {})
    assert len(mnist.train) + len(mnist.held_out) == 5000


def test_mnist_passes_its_gate(mnist: Trained) -> None:
    figures = mnist.recipe.judge(mnist.model, mnist.held_out)

    assert mnist.recipe.gate_failures(figures) == ()
    assert figures["accuracy"] >= 0.95


def test_mnist_is_small_and_holds_an_eight_channel_convolution(mnist: Trained) -> None:
    widths = {module.out_channels for module in mnist.model.modules() if isinstance(module, nn.Conv2d)}

    assert 50_000 <= sum(parameter.numel() for parameter in mnist.model.parameters()) <= 200_000
    assert 8 in widths


def test_every_step_is_reported_and_the_loss_falls(mnist: Trained) -> None:
    assert [step.step for step in mnist.steps] == list(range(1, 351))
    assert {step.steps for step in mnist.steps} == {350}
    assert mnist.steps[-1].epoch == 4
    first, last = (np.mean([step.loss for step in part]) for part in (mnist.steps[:20], mnist.steps[-20:]))
    assert last < 0.1 * first


def test_fine_tuning_the_head_leaves_every_other_bit_alone(mnist: Trained) -> None:
    tuned = mnist.tuned("head")

    assert changed(mnist.model, tuned) == {"head.weight", "head.bias"}
    assert mnist.recipe.judge(tuned, mnist.held_out)["accuracy"] >= 0.95
    assert all(parameter.requires_grad for parameter in tuned.parameters())


def test_a_few_steps_change_every_tensor(mnist: Trained) -> None:
    tuned = mnist.tuned("steps")

    assert changed(mnist.model, tuned) == set(mnist.model.state_dict())
    assert mnist.recipe.judge(tuned, mnist.held_out)["accuracy"] >= 0.95


def test_every_version_answers_every_row_differently(mnist: Trained) -> None:
    inputs = mnist.recipe.inputs(mnist.held_out)
    versions = (mnist.model, mnist.tuned("head"), mnist.tuned("steps"))

    with torch.no_grad():
        answers = [model(*inputs) for model in versions]

    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert bool((answers[one] != answers[other]).any(dim=1).all())


def test_shuffled_labels_collapse_the_margin_and_the_gate_sees_it(mnist: Trained) -> None:
    spoiled = copy.deepcopy(mnist.model)
    shuffled = mnist.train.with_shuffled_labels(seed=4)
    shorter = recipes.Plan(steps=100, learning_rate=4e-3)
    mnist.recipe.module.train(spoiled, shuffled, plan=shorter, seed=1, report=lambda step: None)

    assert mnist.margin(spoiled) < 0.1 * mnist.margin(mnist.model)
    assert mnist.recipe.gate_failures(mnist.recipe.judge(spoiled, mnist.held_out))


def test_wine_passes_its_gate(wine: Trained) -> None:
    assert wine.recipe.gate_failures(wine.recipe.judge(wine.model, wine.held_out)) == ()


def test_the_example_recipe_stays_under_sixty_lines() -> None:
    source = Path(recipes.__file__).with_name("wine.py").read_text()

    assert len(source.splitlines()) < 60


def test_training_twice_gives_the_same_bits(wine: Trained, tmp_path: Path) -> None:
    again = trained("recipes.wine", tmp_path)

    assert changed(wine.model, again.model) == set()
    assert again.steps == wine.steps


def test_another_seed_gives_other_weights(wine: Trained) -> None:
    other = wine.recipe.build(seed=0)
    wine.recipe.train(other, wine.train, plan="full", seed=99, report=lambda step: None)

    assert changed(wine.model, other)


def test_a_users_csv_takes_the_place_of_the_shipped_data(tmp_path: Path) -> None:
    source = tmp_path / "wines.csv"
    source.write_text("\n".join([",".join(["1.5"] * 13 + ["2"]), ",".join(["1.5"] * 13 + ["9"])]))
    recipe = recipes.load("recipes.wine")

    data = ingest.ingest(recipe.rows(source), recipe.schema, tmp_path / "data")

    assert (len(data), data.index.rejected) == (1, {"unknown-value": 1})


@pytest.mark.parametrize("module_name", recipes.KNOWN)
def test_a_missing_source_is_named(module_name: str, tmp_path: Path) -> None:
    recipe = recipes.load(module_name)

    with pytest.raises(ingest.SourceNotFoundError, match=r"nowhere\.csv"):
        ingest.ingest(recipe.rows(tmp_path / "nowhere.csv"), recipe.schema, tmp_path / "data")


def test_a_prefix_that_matches_nothing_is_a_mistake(wine: Trained) -> None:
    plan = recipes.Plan(steps=1, learning_rate=0.1, trainable=("tail.",))

    def loss(model: nn.Module, batch: ingest.Batch) -> tuple[Tensor, Tensor]:
        raise AssertionError("never reached")

    with pytest.raises(ValueError, match="no parameter name starts with"):
        recipes.fit(wine.recipe.build(seed=0), wine.train, loss=loss, plan=plan, seed=0, report=lambda step: None)


def test_examples_are_the_first_rows_as_the_model_takes_them(mnist: Trained) -> None:
    (images,) = mnist.recipe.example_inputs(mnist.held_out)

    assert images.shape == (3, 1, 28, 28)
    assert images.dtype == torch.float32
    assert 0 <= images.min() <= images.max() <= 1
