"""Networks that nobody here wrote: ``python -m tests.compiler.zoo.soak_foreign --packages FOLDER``.

They come from packages that are no part of the project. Into a folder of their own:

    pip install --no-deps --target FOLDER transformers==5.24.0 tokenizers==0.23.3 huggingface-hub==2.4.0 silero-vad==6.2.3

A line each: what passes did and how near float64 the result is, or why it is refused. Exit 1 for an error that is none
of the compiler's.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
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


def entries() -> Iterator[tuple[str, Callable[[], Entry]]]:
    ids = torch.randint(1, 100, (2, 8), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    by_rows = {"ids": {0: ROWS}, "mask": {0: ROWS}}
    for attention in ("eager", "sdpa"):
        yield f"transformers BERT, {attention}", lambda kind=attention: (Encoder(kind).eval(), (ids, mask), by_rows)
    yield "silero-vad", lambda: (import_module("silero_vad").load_silero_vad(onnx=False), (torch.randn(1, 512),), {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", required=True, metavar="FOLDER", help="where pip installed them")
    sys.path.append(parser.parse_args().packages)
    failed = False
    for name, make in entries():
        try:
            model, inputs, dynamic = make()
            report = compiler.compile(model, inputs, dynamic=dynamic, backend="eager").report
        except CompilerError as error:
            print(f"{name}: refused: {error}")
        except Exception as error:
            failed = True
            print(f"{name}: {type(error).__name__}: {error}")
        else:
            changes = ", ".join(f"{entry.name} {len(entry.changes)}" for entry in report.passes if entry.changes)
            share = max(figure.error / max(figure.bound, 1e-300) for figure in report.figures)
            print(f"{name}: {changes}; at most {share:.0%} of the bound")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
