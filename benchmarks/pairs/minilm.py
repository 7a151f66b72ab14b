"""MiniLM's published weights (22.6 million), fine-tuned on text that every installation has.

The objective is contrastive: the two halves of a docstring (``recipes.docstrings``) shall be nearer to each other than
to those of the other seven of its batch; cross entropy over cosines times 20, both ways, as sentence-transformers has
it (MultipleNegativesRankingLoss). AdamW as torch sets it, 16 rows of up to 32 tokens a step, no schedule. In bfloat16
the model computes with rounded weights and AdamW steps float32 masters, which begin as what was published; both halves
of a pair are rounded masters, as a trainer's checkpoints are.
"""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from benchmarks.pairs import Half
from recipes import bert, minilm
from recipes.docstrings import docstrings

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PAIRS_IN_BATCH = 8
TOKENS = 32
LEAST_WORDS = 6
SCALE = 20.0
UNKNOWN = 100  # the id of [UNK]
KEPT_STEPS = (1, 10, 100)
RANK = 8
NEW_ROWS = 100
FIRST_WORD = 999  # rows before it are [PAD], [CLS] … and unused ones


def finetuned(*, kind: str, rate: str, layers: int, words: int) -> Iterator[Half]:
    """All weights after 1, 10 and 100 steps.

    Args:
        kind: A key of ``DTYPES``.
        rate: The learning rate, as names show it.
        layers, words: How much of the model is kept.
    """
    masters = _encoder(layers, words)
    model = deepcopy(masters).to(DTYPES[kind])
    names = {steps: f"minilm-{kind}-lr{rate}-steps{steps}" for steps in KEPT_STEPS}
    for name in names.values():
        yield name, "base", model.state_dict()
    optimiser = torch.optim.AdamW(masters.parameters(), lr=float(rate))
    for step in _steps(model, masters, optimiser, count=max(KEPT_STEPS)):
        if step in names:
            yield names[step], "target", model.state_dict()


def training_state(*, layers: int, words: int) -> Iterator[Half]:
    """Weights and AdamW's moments after 10 steps and after 11."""
    model = _encoder(layers, words)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for step in _steps(model, model, optimiser, count=11):
        if step >= 10:
            state = {"model": model.state_dict(), "optimizer": optimiser.state_dict(), "step": step}
            yield "minilm-state-fp32", "base" if step == 10 else "target", state


def lora(*, layers: int, words: int) -> Iterator[Half]:
    """Adapters of rank 8 on queries and values, after 100 steps at 2e-4 merged into them."""
    model = _encoder(layers, words)
    yield from _in_both("minilm-lora", "base", model)
    adapted = [part for name, part in model.named_modules() if name.endswith((".query", ".value"))]
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for part in adapted:
        parametrize.register_parametrization(part, "weight", _Adapter(generator))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=2e-4)
    for _ in _steps(model, model, optimiser, count=100):
        pass
    for part in adapted:
        parametrize.remove_parametrizations(part, "weight")
    yield from _in_both("minilm-lora", "target", model)


def rows(*, layers: int, words: int) -> Iterator[Half]:
    """Word embeddings alone, after 10 steps at 1e-4 without decay: the rows of words that were seen."""
    model = _encoder(layers, words)
    yield from _in_both("minilm-rows", "base", model)
    model.requires_grad_(False)
    table = model.embeddings.words.requires_grad_()
    optimiser = torch.optim.AdamW(table.parameters(), lr=1e-4, weight_decay=0.0)
    for _ in _steps(model, model, optimiser, count=10):
        pass
    yield from _in_both("minilm-rows", "target", model)


def grown(*, layers: int, words: int) -> Iterator[Half]:
    """A vocabulary of 100 words more, untrained: rows about the mean row, at the end or before the first word."""
    state = _encoder(layers, words).state_dict()
    table = state["embeddings.words.weight"]
    noise = torch.empty(NEW_ROWS, table.shape[1]).normal_(0.0, 0.02, generator=torch.Generator().manual_seed(0))
    for name, place in (("minilm-appended-fp32", words), ("minilm-inserted-fp32", min(FIRST_WORD, words // 2))):
        yield name, "base", state
        wider = torch.cat([table[:place], table.mean(0) + noise, table[place:]])
        yield name, "target", {**state, "embeddings.words.weight": wider}


class _Adapter(nn.Module):
    """W + 2 B A, with A (rank, columns) random and B (rows, rank) zero at first. Source: arXiv:2106.09685."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        bound = bert.HIDDEN**-0.5
        self.down = nn.Parameter(torch.empty(RANK, bert.HIDDEN).uniform_(-bound, bound, generator=generator))
        self.up = nn.Parameter(torch.zeros(bert.HIDDEN, RANK))

    def forward(self, weight: Tensor) -> Tensor:
        """The adapted weight, of the same shape."""
        return weight + 2.0 * self.up @ self.down


def _encoder(layers: int, words: int) -> bert.MiniLM:
    """The published model, or its first layers and words."""
    model = bert.published()
    model.layers = model.layers[:layers]
    table = nn.Embedding(words, bert.HIDDEN)
    table.weight = nn.Parameter(model.embeddings.words.weight[:words].detach().clone())
    model.embeddings.words = table
    return model


def _in_both(name: str, half: str, model: nn.Module) -> Iterator[Half]:
    for kind, dtype in DTYPES.items():
        yield f"{name}-{kind}", half, deepcopy(model).to(dtype).state_dict()  # type: ignore[misc]


def _steps(model: bert.MiniLM, masters: nn.Module, optimiser: torch.optim.Optimizer, *, count: int) -> Iterator[int]:
    """Train; gives the number of each step once it is done, and the model is as its masters are."""
    torch.set_num_threads(1)  # sums are then the same on any number of cores
    batches = _batches(count, words=model.embeddings.words.num_embeddings)
    for step, (left, right) in enumerate(batches, start=1):
        cosines = model(left) @ model(right).T
        truth = torch.arange(len(cosines))
        loss = functional.cross_entropy(cosines * SCALE, truth) + functional.cross_entropy(cosines.T * SCALE, truth)
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for master, weight in zip(masters.parameters(), model.parameters(), strict=True):
            master.grad = None if weight.grad is None else weight.grad.to(master.dtype)
        optimiser.step()
        if masters is not model:
            model.load_state_dict(masters.state_dict())
        yield step


def _batches(count: int, *, words: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Token ids of first and second halves, (8, up to 32) each; the same for the same arguments."""
    tokenizer = Tokenizer.from_file(str(minilm.tokenizer_file()))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(pad_id=bert.PADDING)
    texts = _texts()
    generator = torch.Generator().manual_seed(0)

    def ids(parts: Iterable[list[str]]) -> Tensor:
        tokens = torch.tensor([encoded.ids for encoded in tokenizer.encode_batch([" ".join(part) for part in parts])])
        return torch.where(tokens < words, tokens, UNKNOWN)

    for _ in range(count):
        chosen = [texts[index] for index in torch.randperm(len(texts), generator=generator)[:PAIRS_IN_BATCH]]
        yield ids(text[: len(text) // 2] for text in chosen), ids(text[len(text) // 2 :] for text in chosen)


@cache
def _texts() -> list[list[str]]:
    """Docstrings that are long enough to be halved, as words."""
    texts = [text.split() for text, _ in docstrings()]
    return [text for text in texts if len(text) >= LEAST_WORDS]
