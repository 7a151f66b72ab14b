"""From a module's name to a recipe that the flows can trust.

``load`` imports the module, checks every member against the contract and the names in it against one built model, so
that a mistake is named at once and not after the training. ``Recipe`` is the checked face: it seeds what is random,
finds plans by name, and lets a program be judged like a model. What is NaN or infinite ends a training, and is not
judged.
"""

import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from ingest import Block, Dataset, Schema
from recipes.contract import REQUIRED_PLANS, HasAttachments, Plan, RecipeModule, Report, Rows, Step
from recipes.errors import InvalidRecipeError, NotFiniteError, UnknownPlanError, UnknownRecipeError

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
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # what the registry takes; a test holds them together
_SHOWN_NAMES = 12  # of parameters, in an error


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
            model: object = self.module.build()
        if not isinstance(model, nn.Module):
            found = f"{type(model).__name__} object"
            raise InvalidRecipeError(self.module_name, member="build()", found=found, expected="a torch.nn.Module")
        return model.eval()

    def train(self, model: nn.Module, data: Dataset, *, plan: str, seed: int, report: Report) -> None:
        """Train the model in place by one of the plans.

        Raises:
            UnknownPlanError: The recipe has no plan of that name.
            NotFiniteError: A step's loss is NaN or infinite.
        """
        if plan not in self.plans:
            raise UnknownPlanError(plan, recipe=self.module_name, known=self.plans)

        def report_finite(step: Step) -> None:
            if not math.isfinite(step.loss):
                where = f"the loss of plan '{plan}' at step {step.step} of {step.steps}"
                advice = "train with a smaller learning_rate, or look for such numbers in the data and the model"
                raise NotFiniteError(self.module_name, where=where, found=str(step.loss), advice=advice)
            report(step)

        self.module.train(model, data, plan=self.plans[plan], seed=seed, report=report_finite)

    def judge(self, predict: Callable[..., Any], data: Dataset) -> dict[str, float]:
        """Figures of a model, or of a program's runner (which answers with a tuple), on held-out data.

        Raises:
            NotFiniteError: An answer holds NaN or infinity.
            InvalidRecipeError: A figure that ``GATE`` names is not among them.
        """
        if isinstance(predict, nn.Module):
            predict.eval()

        def single(*inputs: Tensor) -> Tensor:
            answer = predict(*inputs)
            self._refuse_what_is_not_finite(answer)
            return cast(Tensor, answer[0] if isinstance(answer, tuple) and len(answer) == 1 else answer)

        with torch.no_grad():
            figures = dict(self.module.judge(single, data))
        for name in self.gate:
            if name not in figures:
                gives = f"what judge gives: {', '.join(figures) or 'nothing'}"
                member = f"GATE[{name!r}]"
                raise InvalidRecipeError(self.module_name, member=member, found="no figure of judge", expected=gives)
        return figures

    def _refuse_what_is_not_finite(self, answer: Any) -> None:
        for part in answer if isinstance(answer, tuple) else (answer,):
            finite = torch.isfinite(torch.as_tensor(part))
            if not finite.all():
                found = f"NaN or infinite in {finite.numel() - int(finite.sum())} of {finite.numel()} numbers"
                advice = "such weights are not released; train again and watch the loss"
                raise NotFiniteError(self.module_name, where="an answer on held-out rows", found=found, advice=advice)

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
        InvalidRecipeError: A member is missing or not what the contract says, or names what the model does not have.
    """
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the recipe is there, and something that it imports is not
        raise UnknownRecipeError(module_name, known=KNOWN) from error
    _check_values(module_name, module)
    _check_calls(module_name, module)
    recipe = Recipe(module_name=module_name, module=cast(RecipeModule, module))
    _check_names(recipe, recipe.build(seed=0))
    return recipe


def _check_values(recipe: str, module: ModuleType) -> None:
    name = _expect(recipe, module, "NAME", str, "a name such as 'mnist'")
    if not _NAME.fullmatch(name):
        expected = "at most 100 letters, digits, '.', '-' and '_', the first a letter or digit"
        raise InvalidRecipeError(recipe, member="NAME", found=repr(name), expected=expected)
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


def _check_names(recipe: Recipe, model: nn.Module) -> None:
    """Hold what the recipe calls arguments and parameters against those of a model that it builds."""
    arguments = inspect.signature(model.forward).parameters.values()
    takes_any = any(argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD) for argument in arguments)
    names = [argument.name for argument in arguments]
    for name in recipe.dynamic:
        if name not in names and not takes_any:
            found, expected = "no argument of the model's forward", f"one of its arguments: {', '.join(names)}"
            raise InvalidRecipeError(recipe.module_name, member=f"DYNAMIC[{name!r}]", found=found, expected=expected)
    parameters = [name for name, _ in model.named_parameters()]
    for plan, settings in recipe.plans.items():
        for prefix in settings.trainable:
            if not any(name.startswith(prefix) for name in parameters):
                found = f"{prefix!r}, with which no parameter's name starts"
                expected = f"beginnings of {', '.join(parameters[-_SHOWN_NAMES:])}"  # the last are the head's
                raise InvalidRecipeError(
                    recipe.module_name, member=f"PLANS[{plan!r}].trainable", found=found, expected=expected
                )


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
