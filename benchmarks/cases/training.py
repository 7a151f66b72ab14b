"""Training steps of the MNIST recipe from mapped data, against a bare loop over tensors in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import ingest
import recipes
from benchmarks.plan import Call
from recipes.training import WEIGHT_DECAY

LEARNING_RATE = 4e-3
BATCH_ROWS = 64


@contextmanager
def prepare(*, work: Path, shared: Path, rows: int) -> Iterator[Call]:
    """The data set."""
    recipe = recipes.load("recipes.mnist")
    first = (rows + 511) // 512  # the recipe gives blocks of 512 rows

    def ingest_some() -> None:
        blocks = (block for _, block in zip(range(first), recipe.rows(), strict=False))
        ingest.ingest(blocks, recipe.schema, shared / "data")

    yield Call(run=ingest_some)


@contextmanager
def treering(*, work: Path, shared: Path, steps: int) -> Iterator[Call]:
    """The recipe's own training, which reports loss and accuracy of each step."""
    recipe = recipes.load("recipes.mnist")
    data, model = ingest.open(shared / "data"), recipe.build(seed=0)
    plan = recipes.Plan(steps=steps, learning_rate=LEARNING_RATE, batch_rows=BATCH_ROWS)
    reports: list[recipes.Step] = []

    def train(plan: recipes.Plan) -> None:
        recipe.module.train(model, data, plan=plan, seed=0, report=reports.append)

    train(replace(plan, steps=1))  # the first optimiser imports half of torch
    yield Call(run=lambda: train(plan), units=steps)


@contextmanager
def bare_loop(*, work: Path, shared: Path, steps: int) -> Iterator[Call]:
    """The same model, optimiser and batch size, and nothing else: no schedule, no report, rows already floats."""
    recipe = recipes.load("recipes.mnist")
    data, model = ingest.open(shared / "data"), recipe.build(seed=0).train()
    images, digits = data["image"].float() / 255, data["digit"]
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def train(count: int) -> None:
        for _ in range(count):
            rows = torch.randint(len(images), (BATCH_ROWS,))
            loss = nn.functional.cross_entropy(model(images[rows]), digits[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    train(1)
    yield Call(run=lambda: train(steps), units=steps)
