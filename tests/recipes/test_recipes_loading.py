"""Loading a recipe: what is checked, and what each mistake is called."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import recipes
from registry.errors import InvalidNameError
from registry.versions import parse_reference

GOOD = """
    import torch
    from ingest import Field, Schema
    from recipes import Plan

    NAME = "tiny"
    SCHEMA = Schema(fields=(Field(name="v", dtype="float32"),))
    PLANS = dict.fromkeys(("full", "head", "steps"), Plan(steps=1, learning_rate=0.1))
    GATE = {"agreement": 0.5}
    DYNAMIC = {"input": {0: "rows"}}

    def rows(source): return [{"v": [1.0]}]
    def build(): return torch.nn.Linear(1, 1)
    def inputs(rows): return (rows["v"][:, None],)
    def train(model, data, *, plan, seed, report): report(plan)
    def judge(predict, data): return {"agreement": float(predict(torch.ones(1, 1)).ndim == 2)}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Writes a module of one's own, under a name of its own, where Python finds it."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_recipe_{abs(hash(request.node.name))}"

    def write(source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        return name

    yield write
    sys.modules.pop(name, None)


def test_every_shipped_recipe_keeps_the_contract() -> None:
    loaded = [recipes.load(name) for name in recipes.KNOWN]

    assert [recipe.name for recipe in loaded] == ["mnist", "minilm", "wine"]


def test_a_module_elsewhere_on_the_path_is_a_recipe(write) -> None:
    recipe = recipes.load(write(dedent(GOOD)))

    assert recipe.name == "tiny"
    assert list(recipe.rows()) == [{"v": [1.0]}]


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(
        recipes.UnknownRecipeError, match=r"no recipe 'recipes.mnits'.*recipes.mnist, recipes.minilm, recipes.wine"
    ):
        recipes.load("recipes.mnits")


def test_a_recipe_whose_own_import_fails_is_not_called_unknown(write) -> None:
    name = write("import a_module_that_is_not_there\n")

    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        recipes.load(name)


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ('NAME = "tiny"', "", "NAME is missing"),
        ('NAME = "tiny"', "NAME = 7", "NAME is 7, expected a name"),
        ('NAME = "tiny"', 'NAME = "my bad/näme"', "NAME is 'my bad/näme', expected at most 100 letters"),
        ('DYNAMIC = {"input"', 'DYNAMIC = {"inptu"', r"DYNAMIC\['inptu'\] is no argument.*its arguments: input"),
        (
            "learning_rate=0.1)",
            'learning_rate=0.1, trainable=("weight", "head."))',
            r"PLANS\['full'\].trainable is 'head.', with which no .*beginnings of weight, bias",
        ),
        ("torch.nn.Linear(1, 1)", "7", r"build\(\) is int object, expected a torch.nn.Module"),
        ('GATE = {"agreement": 0.5}', 'GATE = {"agreement": "high"}', r"GATE\['agreement'\] is 'high'"),
        ('DYNAMIC = {"input": {0: "rows"}}', 'DYNAMIC = {"input": 0}', r"DYNAMIC\['input'\] is 0"),
        ('("full", "head", "steps")', '("full",)', "PLANS is without head, steps"),
        ("def build():", "def build(size):", r"build is build\(size\).*missing a required argument"),
        ("seed, report):", "report):", "train is train.*seed"),
        ('def judge(predict, data): return {"agreement":', 'judge = {"agreement":', "judge is {"),
    ],
)
def test_a_missing_or_wrong_member_is_named(write, line: str, instead: str, message: str) -> None:
    assert line in GOOD
    source = dedent(GOOD).replace(line, instead)
    if instead.startswith("judge = "):
        source = source.replace("float(predict(torch.ones(1, 1)).ndim == 2)}", "1}")

    with pytest.raises(recipes.InvalidRecipeError, match=message):
        recipes.load(write(source))


@pytest.mark.parametrize("name", ["tiny", "Tiny-2_b.c", "a" * 100, "a" * 101, "", ".a", "-a", "a b", "a/b", "ä", "a\n"])
def test_a_name_is_good_here_where_it_is_good_in_the_registry(name: str, write) -> None:
    try:
        expected = parse_reference(name).name == name
    except InvalidNameError:
        expected = False
    module = write(dedent(GOOD).replace('NAME = "tiny"', f"NAME = {name!r}"))

    try:
        found = recipes.load(module).name == name
    except recipes.InvalidRecipeError:
        found = False

    assert found == expected


def test_a_forward_that_takes_anything_is_left_to_the_compiler(write) -> None:
    model = "class Any(torch.nn.Module):\n    def forward(self, *inputs): return inputs[0]\n"
    source = dedent(GOOD).replace("def build(): return torch.nn.Linear(1, 1)", f"{model}def build(): return Any()")

    assert recipes.load(write(source)).dynamic == {"input": {0: "rows"}}


def test_a_gate_on_a_figure_that_judge_does_not_give_is_a_mistake(write) -> None:
    recipe = recipes.load(write(dedent(GOOD).replace('GATE = {"agreement"', 'GATE = {"agreemnet"')))

    with pytest.raises(
        recipes.InvalidRecipeError, match=r"GATE\['agreemnet'\] is no figure of judge, expected what judge gives: agree"
    ):
        recipe.judge(recipe.build(seed=0), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_answer_that_is_not_finite_is_not_judged(write, value: float, wrapped: bool) -> None:
    recipe = recipes.load(write(dedent(GOOD)))
    answer = torch.tensor([[1.0, value, 2.0]])

    with pytest.raises(
        recipes.NotFiniteError, match=r"an answer on held-out rows is NaN or infinite in 1 of 3 numbers"
    ):
        recipe.judge(lambda v: (answer,) if wrapped else answer, None)  # type: ignore[arg-type]


def test_an_unknown_plan_lists_the_known_ones(write) -> None:
    recipe = recipes.load(write(dedent(GOOD)))

    with pytest.raises(recipes.UnknownPlanError, match="no training plan 'fast': it has full, head, steps"):
        recipe.train(recipe.build(seed=0), None, plan="fast", seed=0, report=print)  # type: ignore[arg-type]


def test_the_same_seed_builds_the_same_model_and_leaves_torchs_generator_alone(write) -> None:
    recipe = recipes.load(write(dedent(GOOD)))
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)

    one, same, other = (recipe.build(seed=seed) for seed in (3, 3, 4))

    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)


def test_a_runner_that_answers_with_a_tuple_is_judged_like_a_model(write) -> None:
    recipe = recipes.load(write(dedent(GOOD)))
    model = recipe.build(seed=0).train()

    assert recipe.judge(model, None) == {"agreement": 1.0}  # type: ignore[arg-type]
    assert recipe.judge(lambda v: (model(v),), None) == {"agreement": 1.0}  # type: ignore[arg-type]
    assert not model.training


@pytest.mark.parametrize(
    ("figures", "failures"),
    [
        ({"agreement": 0.5}, 0),
        ({"agreement": 0.49}, 1),
        ({"agreement": float("nan")}, 1),
        ({}, 1),
    ],
)
def test_the_gate_lets_pass_what_reaches_it_and_nothing_else(write, figures: dict[str, float], failures: int) -> None:
    recipe = recipes.load(write(dedent(GOOD)))

    assert len(recipe.gate_failures(figures)) == failures


@pytest.mark.parametrize("change", [{"steps": 0}, {"batch_rows": 0}, {"learning_rate": 0.0}])
def test_a_plan_that_cannot_train_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cannot train"):
        recipes.Plan(**{"steps": 1, "learning_rate": 0.1, **change})  # type: ignore[arg-type]


def test_the_package_exports_what_it_says() -> None:
    assert set(recipes.__all__) == {
        "KNOWN", "Figures", "InvalidRecipeError", "NotFiniteError", "Plan", "Predict", "Recipe", "RecipeError",
        "RecipeModule", "Report", "Rows", "Step", "UnknownPlanError", "UnknownRecipeError", "accuracy",
        "classification", "fit", "load",
    }  # fmt: skip
    assert all(hasattr(recipes, name) for name in recipes.__all__)


def test_files_that_travel_with_a_version_are_optional(write, tmp_path: Path) -> None:
    assert recipes.load("recipes.wine").attachments() == {}

    recipe = recipes.load(write(dedent(GOOD) + f"def attachments(): return {{'words.txt': {str(tmp_path)!r}}}"))

    assert recipe.attachments() == {"words.txt": str(tmp_path)}


def test_attachments_that_want_an_argument_are_a_mistake(write) -> None:
    with pytest.raises(
        recipes.InvalidRecipeError, match=r"attachments is attachments\(version\).*called as attachments\(\)"
    ):
        recipes.load(write(dedent(GOOD) + "def attachments(version): return {}"))
