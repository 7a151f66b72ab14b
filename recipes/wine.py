"""A recipe of one's own, in full: three cultivars of wine from 13 measurements (scikit-learn's data, no network)."""

from collections.abc import Iterable
from pathlib import Path

from sklearn.datasets import load_wine
from torch import Tensor, nn

from ingest import Batch, Block, Dataset, Field, Schema, read_csv
from recipes import Plan, Predict, Report, Rows, accuracy, classification, fit

NAME = "wine"
SCHEMA = Schema(
    fields=(
        Field(name="measurements", dtype="float32", shape=(13,), low=0, high=10_000),
        Field(name="cultivar", dtype="int64", allowed=(0, 1, 2)),
    ),
    label="cultivar",
)
PLANS = {
    "full": Plan(steps=200, learning_rate=1e-2, batch_rows=32),
    "head": Plan(steps=30, learning_rate=1e-3, batch_rows=32, trainable=("4.",)),
    "steps": Plan(steps=5, learning_rate=1e-4, batch_rows=32),
}
GATE = {"accuracy": 0.8}
DYNAMIC = {"input": {0: "rows"}}


def rows(source: Path | None) -> Iterable[Block]:
    if source is None:
        measurements, cultivar = load_wine(return_X_y=True)
        yield {"measurements": measurements, "cultivar": cultivar}
    else:
        for block in read_csv(source, columns=14):
            yield {"measurements": block[:, :13], "cultivar": block[:, 13]}


def build() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(13), nn.Linear(13, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


def inputs(rows: Rows) -> tuple[Tensor, ...]:
    return (rows["measurements"],)


def train(model: nn.Module, data: Dataset, *, plan: Plan, seed: int, report: Report) -> None:
    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        return classification(model(batch["measurements"]), batch["cultivar"])

    fit(model, data, loss=loss, plan=plan, seed=seed, report=report)


def judge(predict: Predict, data: Dataset) -> dict[str, float]:
    return {"accuracy": accuracy(predict, inputs(data), data["cultivar"])}
