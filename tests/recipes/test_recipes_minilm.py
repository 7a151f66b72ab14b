"""MiniLM on real weights and real texts: the published embeddings, honest rows, and a head that learns."""

import copy
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn

import ingest
import recipes
from recipes import bert, minilm
from recipes.docstrings import FROM_EACH, LIBRARIES

# Made once by sentence-transformers on the same weights; the file says with which versions.
REFERENCE: list[dict[str, Any]] = json.loads(Path(__file__).with_name("minilm_reference.json").read_text("utf-8"))[
    "rows"
]
LAST_LAYER = f"encoder.layers.{bert.LAYERS - 1}."


@pytest.fixture(scope="module")
def recipe() -> recipes.Recipe:
    return recipes.load("recipes.minilm")


@pytest.fixture(scope="module")
def data(recipe: recipes.Recipe, tmp_path_factory: pytest.TempPathFactory) -> ingest.Dataset:
    return ingest.ingest(recipe.rows(), recipe.schema, tmp_path_factory.mktemp("minilm") / "data")


@pytest.fixture(scope="module")
def model(recipe: recipes.Recipe) -> nn.Module:
    return recipe.build(seed=0)


def padded(ids: list[int], length: int) -> Tensor:
    return torch.tensor([ids + [0] * (length - len(ids))])


@pytest.mark.parametrize("row", REFERENCE, ids=range(len(REFERENCE)))
@pytest.mark.parametrize("length", [20, minilm.LENGTH, 128])
def test_embeddings_are_those_of_sentence_transformers(row: dict[str, Any], length: int) -> None:
    with torch.no_grad():
        (embedding,) = bert.published()(padded(row["tokens"], length))

    # Elements are about 0.05: this is some forty roundings of float32, of the millions on the way.
    torch.testing.assert_close(embedding, torch.tensor(row["embedding"]), rtol=0, atol=3e-7)


@pytest.mark.parametrize("row", REFERENCE, ids=range(len(REFERENCE)))
def test_tokens_are_those_of_the_published_tokenizer(
    row: dict[str, Any], recipe: recipes.Recipe, tmp_path: Path
) -> None:
    source = tmp_path / "one.jsonl"
    source.write_text(json.dumps({"text": row["sentence"], "label": "pandas"}))

    (block,) = recipe.rows(source)

    assert torch.tensor(block["tokens"]).tolist() == padded(row["tokens"], minilm.LENGTH).tolist()
    assert (block["length"], block["label"]) == ([len(row["tokens"])], [LIBRARIES.index("pandas")])


def test_every_published_weight_but_the_pooler_is_used() -> None:
    with safe_open(files(bert.PACKAGE) / "model" / "model.safetensors", "pt") as shipped:
        sizes = {name: shipped.get_slice(name).get_shape() for name in shipped.keys()}  # noqa: SIM118 (no mapping)
    encoder = {bert._shipped_name(name): list(tensor.shape) for name, tensor in bert.published().state_dict().items()}

    assert {name: sizes[name] for name in encoder} == encoder
    assert set(sizes) - set(encoder) == {"embeddings.position_ids", "pooler.dense.bias", "pooler.dense.weight"}


def test_a_row_of_padding_alone_is_finite_and_moves_no_other(model: nn.Module) -> None:
    tokens = padded(REFERENCE[0]["tokens"], minilm.LENGTH)

    with torch.no_grad():
        both = model(torch.cat([tokens, torch.zeros_like(tokens)]))
        alone = model(torch.cat([tokens, tokens]))

    assert bool(both.isfinite().all())
    assert torch.equal(both[0], alone[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_is_finite_in_narrow_types_too(dtype: torch.dtype) -> None:
    encoder = bert.published().to(dtype)
    tokens = torch.tensor([[101, 2023, 102, bert.PADDING], [bert.PADDING] * 4])

    with torch.no_grad():
        found = encoder(tokens)

    assert torch.isfinite(found).all()
    assert torch.nn.functional.cosine_similarity(found[:1].float(), bert.published()(tokens[:1])) > 0.99


def test_texts_that_are_too_short_or_too_long_are_rejected_and_counted(data: ingest.Dataset) -> None:
    lengths = [json.loads(line) for line in (Path(data.folder) / "rejects.jsonl").read_text().splitlines()]

    assert data.index.rejected == {"out-of-range": len(lengths)}
    assert len(data) + len(lengths) == FROM_EACH * len(LIBRARIES)
    assert {row["field"] for row in lengths} == {"length"}
    assert any(int(row["found"]) < minilm.LEAST for row in lengths)
    assert any(int(row["found"]) > minilm.LENGTH for row in lengths)
    assert data["label"].bincount(minlength=len(LIBRARIES)).min() > FROM_EACH / 2


def test_a_text_stands_in_one_row_only(data: ingest.Dataset) -> None:
    """Otherwise a held-out text might have been learned by heart."""
    rows = [(*tokens, label) for tokens, label in zip(data["tokens"].tolist(), data["label"].tolist(), strict=True)]

    assert len(set(rows)) > 0.99 * len(rows)  # upper and lower case give the same tokens


def test_a_users_rows_are_taken_or_rejected_each_by_itself(recipe: recipes.Recipe, tmp_path: Path) -> None:
    source = tmp_path / "mine.tsv"
    good = "Return the shortest path between two nodes of a graph."
    source.write_text(f"text\tlabel\n{good}\tnetworkx\n{good}\tnumpy\nShort.\tpandas\n{'long ' * 40}\tpandas\n{good}\n")

    data = ingest.ingest(recipe.rows(source), recipe.schema, tmp_path / "data")

    assert (len(data), data.index.rejected) == (1, {"out-of-range": 2, "unknown-value": 2})


def test_what_is_no_text_is_rejected_as_such(recipe: recipes.Recipe, tmp_path: Path) -> None:
    source = tmp_path / "mine.jsonl"
    good = json.dumps({"text": "Return the shortest path between two nodes.", "label": "networkx"})
    source.write_text(f'{good}\n{{"text": 7, "label": "networkx"}}\nnonsense\n')

    data = ingest.ingest(recipe.rows(source), recipe.schema, tmp_path / "data")

    assert (len(data), data.index.rejected) == (1, {"wrong-type": 2})


def test_a_trained_head_is_better_than_a_fresh_one(
    recipe: recipes.Recipe, model: nn.Module, data: ingest.Dataset
) -> None:
    train, held_out = data.split(held_out=0.05)
    trained = copy.deepcopy(model)
    plan = recipes.Plan(steps=25, learning_rate=3e-3, batch_rows=32, trainable=("head.",))

    recipe.module.train(trained, train, plan=plan, seed=0, report=lambda step: None)

    before, after = (recipe.judge(own, held_out)["accuracy"] for own in (model, trained))
    assert before < 0.4
    assert after > before + 0.2


@pytest.mark.parametrize("plan", minilm.PLANS)
def test_a_plan_changes_what_it_says(plan: str, recipe: recipes.Recipe, model: nn.Module, data: ingest.Dataset) -> None:
    shipped = recipe.plans[plan]
    one_step = recipes.Plan(steps=1, learning_rate=shipped.learning_rate, batch_rows=2, trainable=shipped.trainable)
    tuned = copy.deepcopy(model)

    recipe.module.train(tuned, data, plan=one_step, seed=0, report=lambda step: None)

    state = tuned.state_dict()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, state[name])}
    expected = {"full": (LAST_LAYER, "head."), "head": ("head.",), "steps": ("encoder.", "head.")}[plan]
    assert changed == {name for name in state if name.startswith(expected)}


def test_the_tokenizer_is_attached(recipe: recipes.Recipe) -> None:
    (name, file), *others = recipe.attachments().items()

    tokens = Tokenizer.from_file(str(file)).encode(REFERENCE[0]["sentence"]).ids

    assert (name, others) == ("tokenizer.json", [])
    assert [token for token in tokens if token] == REFERENCE[0]["tokens"]
