"""The MNIST recipe's network, trained in full, then a little more: its head alone, or all of it."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

import ingest
import recipes
from benchmarks.pairs import Half


def digits(*, share: float) -> Iterator[Half]:
    """Plans "head" and "steps" of the recipe from what its plan "full" gives; float32.

    Args:
        share: Of each plan's steps, 0..1.
    """
    recipe = recipes.load("recipes.mnist")
    with TemporaryDirectory(prefix="treering-pairs-") as folder:
        data = ingest.ingest(recipe.rows(), recipe.schema, Path(folder) / "data")
        base = recipe.build(seed=0)

        def train(model: nn.Module, plan: str) -> None:
            chosen = recipe.plans[plan]
            recipe.module.train(
                model,
                data,
                plan=replace(chosen, steps=max(1, round(chosen.steps * share))),
                seed=0,
                report=lambda step: None,
            )

        train(base, "full")
        for name, plan in (("mnist-head", "head"), ("mnist-full", "steps")):
            model = deepcopy(base)
            yield name, "base", model.state_dict()
            train(model, plan)
            yield name, "target", model.state_dict()
