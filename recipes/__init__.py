"""What a user writes: a model, its data, how to train it and how to judge it.

A recipe is one module. It names its model, says what a row of its data looks like, and has five functions: ``rows``,
``build``, ``inputs``, ``train`` and ``judge``; ``attachments`` may name files that travel with every version.
``contract.RecipeModule`` is the whole list; ``recipes/wine.py`` is a complete example. Everything else (ingest,
compile, checkpoint, publish, serve, watch) is the pipeline's work:

    prefect deployment run 'pipeline/default' --param recipe=my_recipe

    recipe = recipes.load("recipes.mnist")
    data = ingest.ingest(recipe.rows(), recipe.schema, "data/mnist")
    train, held_out = data.split(held_out=0.1)
    model = recipe.build(seed=0)
    recipe.train(model, train, plan="full", seed=0, report=print)
    recipe.gate_failures(recipe.judge(model, held_out))   # () means: good enough to release

Three plans are always there: "full" trains from the start, "head" changes a few tensors only, "steps" everything a
little; the last two are what a delta is for. ``fit``, ``classification`` and ``accuracy`` are shared by the shipped
recipes and free to use. Errors are in ``recipes.errors``.
"""

from recipes.contract import Figures, Plan, Predict, RecipeModule, Report, Rows, Step
from recipes.errors import InvalidRecipeError, NotFiniteError, RecipeError, UnknownPlanError, UnknownRecipeError
from recipes.judging import accuracy
from recipes.loading import KNOWN, Recipe, load
from recipes.training import classification, fit

__all__ = [
    "KNOWN",
    "Figures",
    "InvalidRecipeError",
    "NotFiniteError",
    "Plan",
    "Predict",
    "Recipe",
    "RecipeError",
    "RecipeModule",
    "Report",
    "Rows",
    "Step",
    "UnknownPlanError",
    "UnknownRecipeError",
    "accuracy",
    "classification",
    "fit",
    "load",
]
