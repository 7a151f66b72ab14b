"""Compiled programs: making one, and asking it, against eager PyTorch and ``torch.compile``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import compiler
from benchmarks.cases.releases import (
    EXAMPLE_ROWS,
    INDUCTOR,
    PROGRAM,
    PROGRAMS,
    ask,
    build_model,
    compile_program,
    images,
    torch_compiled,
)
from benchmarks.plan import Call

WARM_UP = 3


@contextmanager
def compile_treering(*, work: Path, shared: Path, model: str, backend: str, warm: bool) -> Iterator[Call]:
    """Capture, fold, build (or take from the cache), verify."""
    built = build_model(model)
    cache = shared / PROGRAMS if warm else work / PROGRAMS
    yield Call(run=lambda: compile_program(built, backend=backend, cache=cache))


@contextmanager
def compile_torch(*, work: Path, shared: Path, model: str, warm: bool) -> Iterator[Call]:
    """The first call of a compiled module, which compiles it (or takes it from Inductor's cache)."""
    compiled = torch_compiled(build_model(model), cache=shared / INDUCTOR if warm else work / INDUCTOR)
    batch = images(EXAMPLE_ROWS)
    yield Call(run=lambda: ask(compiled, batch))


@contextmanager
def forward_treering(*, work: Path, shared: Path, model: str, rows: int, calls: int) -> Iterator[Call]:
    """The saved program bound to the model's weights."""
    runner = compiler.load(shared / PROGRAM).bind(build_model(model).state_dict())
    yield _calls(runner, rows=rows, calls=calls)


@contextmanager
def forward_eager(*, work: Path, shared: Path, model: str, rows: int, calls: int) -> Iterator[Call]:
    """The module itself."""
    yield _calls(build_model(model), rows=rows, calls=calls)


@contextmanager
def forward_torch_compile(*, work: Path, shared: Path, model: str, rows: int, calls: int) -> Iterator[Call]:
    """The module compiled by ``torch.compile``, its cache warm."""
    yield _calls(torch_compiled(build_model(model), cache=shared / INDUCTOR), rows=rows, calls=calls)


def _calls(model: Callable[..., object], *, rows: int, calls: int) -> Call:
    batch = images(rows)
    for _ in range(WARM_UP):
        ask(model, batch)

    def run() -> None:
        for _ in range(calls):
            ask(model, batch)

    return Call(run=run, units=calls)
