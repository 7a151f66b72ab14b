"""What the sides of compiling, asking and updating share: a model, its program, its versions, and filled caches.

The model is the MNIST recipe's; in quick runs a single layer and no native code, since compiling takes as long as it
takes.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

import ckpt
import compiler
import recipes
from benchmarks.plan import Call
from serving.release import PROGRAM_FOLDER

MAX_ROWS = 32
EXAMPLE_ROWS = 3
PROGRAMS, INDUCTOR, PROGRAM = "programs", "inductor", "program"
VERSIONS = ("1", "2", "3")


class OneLayer(nn.Module):
    """Images (rows, 1, 28, 28) to logits (rows, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(28 * 28, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Logits, shape (rows, 10)."""
        logits: Tensor = self.head(image.flatten(1))
        return logits


@contextmanager
def prepare(*, work: Path, shared: Path, model: str, backend: str) -> Iterator[Call]:
    """The program, three versions of its weights as releases and as ``torch.save`` writes them, and both caches."""

    def fill() -> None:
        program = compile_program(build_model(model), backend=backend, cache=shared / PROGRAMS)
        folder = program.save(shared / PROGRAM)
        files = {f"{PROGRAM_FOLDER}/{file.relative_to(folder)}": file for file in folder.rglob("*") if file.is_file()}
        for number in VERSIONS:
            state = dict(build_model(model, seed=int(number)).state_dict())
            ckpt.save(state, shared / number, attachments=files)
            torch.save(state, shared / f"{number}.pt")
        compiled = torch_compiled(build_model(model), cache=shared / INDUCTOR)
        for rows in (EXAMPLE_ROWS, 1):  # one graph for any number of rows, and one for a single row
            ask(compiled, images(rows))

    yield Call(run=fill)


def build_model(name: str, *, seed: int = 0) -> nn.Module:
    """A recipe's model, or ``"one-layer"``."""
    if name != "one-layer":
        return recipes.load(name).build(seed=seed)
    torch.manual_seed(seed)
    return OneLayer().eval()


def compile_program(model: nn.Module, *, backend: str, cache: Path) -> compiler.Program:
    """As a release does: for any number of rows up to ``MAX_ROWS``, verified in float64."""
    dynamic = {"image": {0: compiler.Dim(name="rows", max=MAX_ROWS)}}
    return compiler.compile(model, (images(EXAMPLE_ROWS),), dynamic=dynamic, backend=backend, cache=cache)


def torch_compiled(model: nn.Module, *, cache: Path) -> Callable[..., object]:
    """The peer's form of it, not compiled before its first call."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    torch.compiler.reset()  # in a quick run an earlier side has compiled the same code
    compiled: Callable[..., object] = torch.compile(model, dynamic=True)
    return compiled


def ask(model: Callable[..., object], images: Tensor) -> None:
    """One call as a server makes it."""
    with torch.no_grad():
        model(images)


def images(rows: int) -> Tensor:
    """Random pixels 0..1, shape (rows, 1, 28, 28)."""
    return torch.rand(rows, 1, 28, 28, generator=torch.Generator().manual_seed(rows))
