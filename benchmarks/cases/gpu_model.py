"""MiniLM on a GPU in bfloat16: a program in captured graphs that see new weights, torch.compile, and eager PyTorch."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch._inductor.config
from torch import Tensor

import compiler
from benchmarks.plan import Call
from recipes import bert

PROGRAM, INDUCTOR = "program", "inductor"
TOKENS, MOST_ROWS = 128, 32
WARM_UP = 5
SECONDS = 0.3


@contextmanager
def prepare(*, work: Path, shared: Path) -> Iterator[Call]:
    """The program, saved; verified in float64, for which one thread would take minutes."""

    def fill() -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        rows = compiler.Dim(name="rows", max=MOST_ROWS)
        example = (tokens(2),)
        compiler.compile(model(), example, dynamic={"tokens": {0: rows}}, backend="eager", targets=("cuda",)).save(
            shared / PROGRAM
        )

    yield Call(run=fill)


def model() -> bert.MiniLM:
    """With random weights, on the CPU."""
    torch.manual_seed(0)
    return bert.MiniLM().eval().to(torch.bfloat16)


def tokens(rows: int) -> Tensor:
    """A batch of full rows."""
    return torch.randint(1, bert.WORDS, (rows, TOKENS), generator=torch.Generator().manual_seed(rows))


@contextmanager
def program(*, work: Path, shared: Path, rows: int) -> Iterator[Call]:
    """The saved program on the GPU."""
    runner = compiler.load(shared / PROGRAM).bind(model().state_dict(), device=torch.device("cuda"))
    yield _calls(runner, rows)


@contextmanager
def torch_compile(*, work: Path, shared: Path, rows: int) -> Iterator[Call]:
    """``torch.compile`` with CUDA graphs."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(shared / INDUCTOR)
    torch.compiler.reset()
    torch._inductor.config.compile_threads = os.cpu_count() or 1  # decides how long it compiles, not what
    yield _calls(torch.compile(model().cuda(), mode="reduce-overhead", dynamic=False), rows)


@contextmanager
def eager(*, work: Path, shared: Path, rows: int) -> Iterator[Call]:
    """The module itself."""
    yield _calls(model().cuda(), rows)


def _calls(ask: Callable[[Tensor], object], rows: int) -> Call:
    batch = tokens(rows).cuda()

    def seconds_of(count: int) -> float:
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        with torch.no_grad():
            for _ in range(count):
                ask(batch)
        torch.cuda.synchronize()
        return time.perf_counter() - started_s

    seconds_of(WARM_UP)
    count = max(1, int(SECONDS * WARM_UP / seconds_of(WARM_UP)))
    return Call(run=lambda: seconds_of(count), units=count)
