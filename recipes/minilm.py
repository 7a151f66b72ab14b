"""Which library does this sentence of documentation belong to? MiniLM with a classifying head.

The encoder starts from published weights (``recipes.bert``); the head is new. The data that ship are docstrings of six
installed libraries (``recipes.docstrings``), 600 each; a user's source is a file of texts and labels that
``ingest.read_texts`` takes. Texts of fewer than ``LEAST`` tokens or more than ``LENGTH`` are rejected. The tokenizer
travels with each version as its attachment ``tokenizer.json``, so that whoever has the version can ask it:

    tokens = tokenizers.Tokenizer.from_file("tokenizer.json").encode("Draw a line.").ids   # then zeros up to LENGTH
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor, nn

from ingest import Batch, Block, Dataset, Field, Schema, read_texts
from recipes import Plan, Predict, Report, Rows, accuracy, bert, classification, fit
from recipes.docstrings import LIBRARIES, docstrings

NAME = "minilm"
LABELS = LIBRARIES
LENGTH = 32  # tokens of a row, [CLS] and [SEP] among them
LEAST = 8
UNKNOWN = -1
BLOCK_ROWS = 512
SCHEMA = Schema(
    fields=(
        Field(name="tokens", dtype="int64", shape=(LENGTH,), low=0, high=bert.WORDS - 1),
        Field(name="length", dtype="int64", low=LEAST, high=LENGTH),
        Field(name="label", dtype="int64", allowed=tuple(range(len(LABELS)))),
    ),
    label="label",
)
PLANS = {
    "full": Plan(
        steps=60, learning_rate=5e-4, batch_rows=32, trainable=(f"encoder.layers.{bert.LAYERS - 1}.", "head.")
    ),
    "head": Plan(steps=20, learning_rate=2e-4, batch_rows=32, trainable=("head.",)),
    "steps": Plan(steps=4, learning_rate=1e-5, batch_rows=16),
}
GATE = {"accuracy": 0.7}
DYNAMIC = {"tokens": {0: "rows"}}


class Classifier(nn.Module):
    """Token ids (rows, LENGTH) to logits (rows, labels)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = bert.published()
        self.head = nn.Linear(bert.HIDDEN, len(LABELS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, shape (rows, labels)."""
        embedding = self.encoder(tokens) * bert.HIDDEN**0.5  # elements of about 1: one learning rate fits all layers
        logits: Tensor = self.head(embedding)
        return logits


def rows(source: Path | None) -> Iterable[Block]:
    """Blocks of tokenized texts with their labels."""
    pairs = docstrings() if source is None else read_texts(source)
    for block in _blocks(pairs):
        texts, labels = zip(*block, strict=True)
        encoded = _token_ids(texts)
        yield {
            "tokens": [_padded(ids) for ids in encoded],
            "length": [None if ids is None else len(ids) for ids in encoded],
            "label": [LABELS.index(label) if label in LABELS else UNKNOWN for label in labels],
        }


def build() -> nn.Module:
    """Published weights under a fresh head."""
    return Classifier()


def inputs(rows: Rows) -> tuple[Tensor, ...]:
    """Token ids, 0 where there are none."""
    return (rows["tokens"],)


def train(model: nn.Module, data: Dataset, *, plan: Plan, seed: int, report: Report) -> None:
    """Cross entropy on the labels."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        return classification(model(*inputs(batch)), batch["label"])

    fit(model, data, loss=loss, plan=plan, seed=seed, report=report)


def judge(predict: Predict, data: Dataset) -> dict[str, float]:
    """Accuracy on held-out texts."""
    return {"accuracy": accuracy(predict, inputs(data), data["label"])}


def attachments() -> Mapping[str, Path]:
    """The tokenizer, which every version carries."""
    return {"tokenizer.json": tokenizer_file()}


@cache
def tokenizer_file() -> Path:
    """The file in the installed package."""
    with as_file(files(bert.PACKAGE) / "model" / "tokenizer.json") as file:
        return file


def _blocks(pairs: Iterable[tuple[object, object]]) -> Iterator[list[tuple[object, object]]]:
    pairs = iter(pairs)
    while block := list(itertools.islice(pairs, BLOCK_ROWS)):
        yield block


def _token_ids(texts: Iterable[object]) -> list[list[int] | None]:
    """All ids of each text, however long; None for what is no text."""
    tokenizer = _tokenizer()
    return [tokenizer.encode(text).ids if isinstance(text, str) else None for text in texts]


@cache
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(tokenizer_file()))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _padded(ids: list[int] | None) -> list[int]:
    shown = (ids or [])[:LENGTH]
    return shown + [bert.PADDING] * (LENGTH - len(shown))
