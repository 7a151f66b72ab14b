"""From a module's name to a recipe that the flows can trust.

``load`` imports the module and checks every member against the contract before anything is run, so that a mistake is
named at once and not after the training. ``Recipe`` is the checked face: it seeds what is random, finds plans by name,
and lets a program be judged like a model.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from ingest import Block, Dataset, Schema
from recipes.contract import REQUIRED_PLANS, HasAttachments, Plan, RecipeModule, Report, Rows
from recipes.errors import InvalidRecipeError, UnknownPlanError, UnknownRecipeError

KNOWN = ("recipes.mnist", "recipes.minilm", "recipes.wine")

# member → what it is called with; the arguments' values do not matter, their names and number do.
_CALLS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rows": (("source",), ()),
    "build": ((), ()),
    "inputs": (("rows",), ()),
    "train": (("model", "data"), ("plan", "seed", "report")),
    "judge": (("predict", "data"), ()),
    "attachments": ((), ()),
}
_OPTIONAL = ("attachments",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe that keeps the contract. ``module_name`` loads it again; ``name`` is the model's name."""

    module_name: str
    module: RecipeModule

    @property
    def name(self) -> str:
        """The model's name in the registry."""
        return self.module.NAME

    @property
    def schema(self) -> Schema:
        """What a row of its data looks like."""
        return self.module.SCHEMA

    @property
    def plans(self) -> Mapping[str, Plan]:
        """Training plans by name; "full", "head" and "steps" are always there."""
        return self.module.PLANS

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]]:
        """For each argument of forward, the axes that vary and what they count."""
        return self.module.DYNAMIC

    @property
    def gate(self) -> Mapping[str, float]:
        """The least figures that may be released."""
        return self.module.GATE

    def rows(self, source: Path | None = None) -> Iterable[Block]:
        """Raw rows in blocks; None means the data that ships."""
        return self.module.rows(source)

    def build(self, *, seed: int) -> nn.Module:
        """A fresh model in eval mode, the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.module.build().eval()

    def train(self, model: nn.Module, data: Dataset, *, plan: str, seed: int, report: Report) -> None:
        """Train the model in place by one of the plans.

        Raises:
            UnknownPlanError: The recipe has no plan of that name.
        """
        if plan not in self.plans:
            raise UnknownPlanError(plan, recipe=self.module_name, known=self.plans)
        self.module.train(model, data, plan=self.plans[plan], seed=seed, report=report)

    def judge(self, predict: Callable[..., Any], data: Dataset) -> dict[str, float]:
        """Figures of a model, or of a program's runner (which answers with a tuple), on held-out data."""
        if isinstance(predict, nn.Module):
            predict.eval()

        def single(*inputs: Tensor) -> Tensor:
            answer = predict(*inputs)
            return cast(Tensor, answer[0] if isinstance(answer, tuple) and len(answer) == 1 else answer)

        with torch.no_grad():
            return dict(self.module.judge(single, data))

    def attachments(self) -> Mapping[str, Path]:
        """Files that travel with every version, by their path inside the checkpoint; most recipes have none."""
        return self.module.attachments() if isinstance(self.module, HasAttachments) else {}

    def gate_failures(self, figures: Mapping[str, float]) -> tuple[str, ...]:
        """What keeps these figures from release, one sentence each; () when nothing does."""
        return tuple(
            f"{name} is {figures.get(name, math.nan):.4f}, the gate asks for at least {least}"
            for name, least in self.gate.items()
            if not figures.get(name, math.nan) >= least  # a NaN or a missing figure fails too
        )

    def inputs(self, rows: Rows) -> tuple[Tensor, ...]:
        """The model's arguments for these rows: of a data set, for judging and for requests."""
        return tuple(self.module.inputs(rows))

    def example_inputs(self, data: Dataset, *, rows: int = 3) -> tuple[Tensor, ...]:
        """The model's arguments for the first rows, to capture the model with.

        Three rows by default: at one row torch.export takes the axis for a constant (pytorch#133653).
        """
        return self.inputs(data.take(range(min(rows, len(data)))))


def load(module_name: str) -> Recipe:
    """Import a recipe's module and check it.

    Args:
        module_name: "recipes.mnist", or any module on the path.

    Raises:
        UnknownRecipeError: There is no such module.
        InvalidRecipeError: A member is missing or not what the contract says.
    """
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the recipe is there, and something that it imports is not
        raise UnknownRecipeError(module_name, known=KNOWN) from error
    _check_values(module_name, module)
    _check_calls(module_name, module)
    return Recipe(module_name=module_name, module=cast(RecipeModule, module))


def _check_values(recipe: str, module: ModuleType) -> None:
    _expect(recipe, module, "NAME", str, "a name such as 'mnist'")
    _expect(recipe, module, "SCHEMA", Schema, "an ingest.Schema")
    _expect_mapping(recipe, module, "GATE", value=(int, float), expected="a mapping of figure name to number")
    _expect_mapping(recipe, module, "DYNAMIC", value=Mapping, expected="a mapping such as {'image': {0: 'rows'}}")
    _expect_mapping(recipe, module, "PLANS", value=Plan, expected="a mapping of plan name to recipes.Plan")
    missing = [name for name in REQUIRED_PLANS if name not in module.PLANS]
    if missing:
        found = f"without {', '.join(missing)}"
        raise InvalidRecipeError(recipe, member="PLANS", found=found, expected=f"plans {', '.join(REQUIRED_PLANS)}")


def _check_calls(recipe: str, module: ModuleType) -> None:
    for member, (positional, keywords) in _CALLS.items():
        if member in _OPTIONAL and not hasattr(module, member):
            continue
        expected = f"a function called as {member}({', '.join([*positional, *(f'{name}=…' for name in keywords)])})"
        function = _expect(recipe, module, member, Callable, expected)
        try:
            inspect.signature(function).bind(*positional, **dict.fromkeys(keywords))
        except TypeError as error:
            found = f"{member}{inspect.signature(function)} ({error})"
            raise InvalidRecipeError(recipe, member=member, found=found, expected=expected) from error


def _expect_mapping(recipe: str, module: ModuleType, member: str, *, value: Any, expected: str) -> None:
    mapping = _expect(recipe, module, member, Mapping, expected)
    for key, entry in mapping.items():
        if not isinstance(key, str) or not isinstance(entry, value):
            raise InvalidRecipeError(recipe, member=f"{member}[{key!r}]", found=repr(entry), expected=expected)


def _expect(recipe: str, module: ModuleType, member: str, kind: Any, expected: str) -> Any:
    if not hasattr(module, member):
        raise InvalidRecipeError(recipe, member=member, found="missing", expected=expected)
    found = getattr(module, member)
    if not isinstance(found, kind):
        raise InvalidRecipeError(recipe, member=member, found=f"{found!r}", expected=expected)
    return found
