"""What a release attaches beside the program, and what training and release refuse before they do anything."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from prefect.logging import disable_run_logger

import ckpt
import ingest
import recipes
from flows.release import _own_attachments, release
from flows.train import train


def recipe(path: str) -> recipes.Recipe:
    return recipes.Recipe(module_name="own", module=SimpleNamespace(attachments=lambda: {path: Path("words.txt")}))


def test_a_recipes_own_files_travel_with_the_version() -> None:
    assert _own_attachments(recipe("programs/words.txt")) == {"programs/words.txt": Path("words.txt")}


def test_the_place_of_the_program_is_taken() -> None:
    with pytest.raises(
        recipes.InvalidRecipeError, match=r"files at program/words\.txt, expected none under 'program/'"
    ):
        _own_attachments(recipe("program/words.txt"))


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The wine data; there is no MLflow server to go to."""
    monkeypatch.setenv("TREERING_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    wine = recipes.load("recipes.wine")
    ingest.ingest(wine.rows(), wine.schema, tmp_path / "data")
    threads = torch.get_num_threads()
    with disable_run_logger():
        yield str(tmp_path / "data")
    torch.set_num_threads(threads)


def test_a_mistake_in_judging_is_named_before_the_training(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipes.wine.GATE", {"acuracy": 0.9})

    with pytest.raises(recipes.InvalidRecipeError, match=r"GATE\['acuracy'\] .* what judge gives: accuracy"):
        train.fn("recipes.wine", dataset)


def test_a_model_that_answers_nan_is_not_released_whatever_the_gate_says(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipes.wine.GATE", {"accuracy": 0.0})
    state = recipes.load("recipes.wine").build(seed=0).state_dict()
    state["4.bias"] = torch.full_like(state["4.bias"], float("nan"))
    ckpt.save(dict(state), tmp_path / "weights")

    with pytest.raises(recipes.NotFiniteError, match="an answer on held-out rows is NaN"):
        release.fn("recipes.wine", dataset, str(tmp_path / "weights"), backend="eager", force="it must go out")
