"""Networks that nobody here wrote: ``python -m tests.compiler.zoo.soak_foreign --packages FOLDER``.

They come from packages that are no part of the project. Into a folder of their own:

    pip install --no-deps --target FOLDER transformers==5.24.0 tokenizers==0.23.3 huggingface-hub==2.4.0
    pip install --no-deps --target FOLDER silero-vad==6.2.3

A line each: what passes did and how near float64 the result is, or why it is refused.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

import compiler
from compiler import Dim
from compiler.errors import CompilerError

ROWS = Dim(name="rows", max=16)
Entry = tuple[nn.Module, tuple[Tensor, ...], dict[str, dict[int, Dim]]]


class Encoder(nn.Module):
    """A BERT of ``transformers`` as it is asked: ids and a mask, or ids alone."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        library: Any = import_module("transformers")
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        self.bert = library.BertModel(library.BertConfig(vocab_size=100, attn_implementation=attention, **sizes))
        self.bert.config.return_dict = False

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(R, T) int64 each to (R, T, 64)."""
        answer: Tensor = self.bert(input_ids=ids, attention_mask=mask)[0]
        return answer


def encoder(attention: str) -> Entry:
    ids = torch.randint(1, 100, (2, 8), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    return Encoder(attention).eval(), (ids, mask), {"ids": {0: ROWS}, "mask": {0: ROWS}}


def detector() -> Entry:
    library: Any = import_module("silero_vad")
    return library.load_silero_vad(onnx=False), (torch.randn(1, 512),), {}


NETWORKS: dict[str, Callable[[], Entry]] = {
    "transformers BERT, eager": partial(encoder, "eager"),
    "transformers BERT, sdpa": partial(encoder, "sdpa"),
    "silero-vad": detector,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", required=True, metavar="FOLDER", help="where pip installed them")
    sys.path.append(parser.parse_args().packages)
    for name, make in NETWORKS.items():
        model, inputs, dynamic = make()
        try:
            report = compiler.compile(model, inputs, dynamic=dynamic, backend="eager").report
        except CompilerError as error:
            print(f"{name}: refused: {error}")
            continue
        changes = ", ".join(f"{entry.name} {len(entry.changes)}" for entry in report.passes if entry.changes)
        share = max(figure.error / max(figure.bound, 1e-300) for figure in report.figures)
        print(f"{name}: {changes}; at most {share:.0%} of the bound")


if __name__ == "__main__":
    main()
