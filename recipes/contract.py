"""What a user writes: one module with these members.

``RecipeModule`` is the contract and ``recipes/wine.py`` an example of under 60 lines. A recipe knows its data and its
model; it knows nothing of checkpoints, registries, compilers or servers. ``recipes.load`` checks a module against this
contract and gives the ``Recipe`` that the flows use.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from ingest import Block, Dataset, Schema

REQUIRED_PLANS = ("full", "head", "steps")

Predict = Callable[..., Tensor]
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long and how far to train.

    Args:
        steps: Optimiser steps, >= 1.
        learning_rate: Peak, reached after the warm-up.
        batch_rows: Rows in a step.
        trainable: Prefixes of the parameter names that may change; () trains everything. With prefixes given, all
            else stays bit for bit as it is, batch-norm statistics included.
    """

    steps: int
    learning_rate: float
    batch_rows: int = 64
    trainable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_rows < 1 or self.learning_rate <= 0:
            raise ValueError(f"{self} cannot train: steps, batch_rows and learning_rate must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One finished training step: which one of how many, in which epoch, and its batch's loss and accuracy (0..1)."""

    epoch: int
    step: int
    steps: int
    loss: float
    accuracy: float


Report = Callable[[Step], None]


class Rows(Protocol):
    """Anything that gives a column by its field's name: a ``Dataset``, a ``Batch``, a dict of tensors."""

    def __getitem__(self, name: str, /) -> Tensor: ...


class RecipeModule(Protocol):
    """The members of a recipe's module; every one must be there.

    ``NAME`` names the model in the registry: letters, digits, '.', '-' and '_'. ``GATE`` holds the least figure of
    ``judge`` that may be released.
    ``DYNAMIC`` says, for each argument of the model's forward, which axes vary: {"image": {0: "rows"}}.
    """

    NAME: str
    SCHEMA: Schema
    PLANS: Mapping[str, Plan]
    GATE: Figures
    DYNAMIC: Mapping[str, Mapping[int, str]]

    def rows(self, source: Path | None) -> Iterable[Block]:
        """Raw rows in blocks: from the user's source, or the shipped data when it is None."""

    def build(self) -> nn.Module:
        """A fresh model; its random weights come from torch's seeded generator."""

    def inputs(self, rows: Rows) -> tuple[Tensor, ...]:
        """The model's arguments for these rows, rows along axis 0."""

    def train(self, model: nn.Module, data: Dataset, *, plan: Plan, seed: int, report: Report) -> None:
        """Train the model in place, the same way for the same seed, and report every step."""

    def judge(self, predict: Predict, data: Dataset) -> Figures:
        """Named figures of a model or a compiled program on held-out data, higher is better."""


@runtime_checkable
class HasAttachments(Protocol):
    """What a recipe's module may have besides."""

    def attachments(self) -> Mapping[str, Path]:
        """Files that travel with every version, such as a tokenizer, by their path inside the checkpoint."""
