"""Fused operators, the same out of torch's own, and what bounds both: the bare product, or a copy."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.plan import Call
from compiler import kernels
from compiler.kernels.operands import ACTIVATIONS

# Several times the 60 MB of an H200's cache: what a call reads was pushed out since it was read last.
SETS_BYTES: Final = 256 << 20
MOST_SETS: Final = 64
WARM_UP: Final = 3
EPSILON: Final = 1e-5
_ELEMENT_BYTES: Final = 2  # bfloat16

Run = Callable[[], object]


@contextmanager
def prepare(*, work: Path, shared: Path) -> Iterator[Call]:
    """Nothing is shared."""
    yield Call(run=lambda: None)


@contextmanager
def calls(
    *,
    work: Path,
    shared: Path,
    how: str,
    operator: str,
    rows: int,
    columns: int,
    depth: int,
    activation: str,
    is_captured: bool = False,
    device: str = "cuda",
    seconds: float = 0.3,
) -> Iterator[Call]:
    """As many calls of an operator as take about ``seconds``, each on the next set of operands.

    Args:
        how: "fused", "torch" or "alone".
        operator: A key of ``FORMS``.
        rows, columns, depth: Of the result, and of the sum in a product.
        activation: Of a product.
        is_captured: A round of calls is one CUDA graph, so that the host is out of the time.
    """
    runs = runs_of(how, operator, rows, columns, depth, activation=activation, device=device)
    each = len(runs) if is_captured else 1
    if is_captured:
        runs = [captured(runs)]
    count = max(len(runs), int(seconds / seconds_of(runs, len(runs), device=device)))
    took: list[float] = []
    yield Call(
        run=lambda: took.append(seconds_of(runs, count, device=device) / each),
        units=count * each,
        figures=lambda: rate(how, operator, rows, columns, depth, seconds=took[0]),
    )


def captured(runs: Sequence[Run]) -> Run:
    """One call that replays them all."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    return graph.replay


def runs_of(
    how: str, operator: str, rows: int, columns: int, depth: int, *, activation: str, device: str, config: str = ""
) -> list[Run]:
    """A call on each of so many sets of operands that a cache does not hold them, all of them run once."""
    kernels.register()
    set_bytes = moved_bytes(how, operator, rows, columns, depth)
    sets = _sets(
        operator, rows, columns, depth, count=min(MOST_SETS, max(2, -(-SETS_BYTES // set_bytes))), device=device
    )
    runs: list[Run] = [FORMS[operator](how, operands, activation, config) for operands in sets]
    for run in runs[:1] * WARM_UP + runs:
        run()
    return runs


def rate(how: str, operator: str, rows: int, columns: int, depth: int, *, seconds: float) -> dict[str, float]:
    """What that many seconds for a call are in floating-point operations, or in bytes that must be moved."""
    if operator == "linear_act":
        return {"tflop_per_s": 2 * rows * columns * depth / seconds / 1e12}
    return {"tb_per_s": moved_bytes(how, operator, rows, columns, depth) / seconds / 1e12}


def moved_bytes(how: str, operator: str, rows: int, columns: int, depth: int) -> int:
    """The fewest bytes a call moves: operands read once and results written once; vectors are nothing beside them."""
    if operator == "linear_act":
        return _ELEMENT_BYTES * (rows * depth + columns * depth + rows * columns)
    matrices = 3 if operator == "add_layernorm" and how != "alone" else 2
    return _ELEMENT_BYTES * matrices * rows * columns


def seconds_of(runs: Sequence[Run], count: int, *, device: str) -> float:
    """Seconds for one of ``count`` calls that follow each other, on the sets of operands in turn."""
    if device == "cuda":
        torch.cuda.synchronize()
    started_s = time.perf_counter()
    for number in range(count):
        runs[number % len(runs)]()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started_s) / count


def _sets(operator: str, rows: int, columns: int, depth: int, *, count: int, device: str) -> Iterator[Sequence[Tensor]]:
    generator = torch.Generator(device).manual_seed(0)
    shapes = {
        "linear_act": ((rows, depth), (columns, depth), (columns,)),
        "add_layernorm": ((rows, columns), (rows, columns), (columns,), (columns,)),
    }.get(operator, ((rows, columns), (columns,), (columns,)))
    for _ in range(count):
        yield [torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16) for shape in shapes]


# --- the ways of doing it: (how, operands, activation, configuration) → a call ---------------------------------------


def _linear_act(how: str, operands: Sequence[Tensor], activation: str, config: str) -> Run:
    x, weight, bias = operands
    act = ACTIVATIONS[activation]
    return {
        "fused": lambda: torch.ops.treering.linear_act(x, weight, bias, activation, config=config),
        "torch": lambda: act(functional.linear(x, weight, bias)),
        "alone": lambda: torch.addmm(bias, x, weight.t()),
    }[how]


def _layernorm_act(how: str, operands: Sequence[Tensor], activation: str, config: str) -> Run:
    x, gain, bias = operands
    return {
        "fused": lambda: torch.ops.treering.layernorm_act(x, gain, bias, EPSILON, "gelu", config=config),
        "torch": lambda: functional.gelu(functional.layer_norm(x, gain.shape, gain, bias, EPSILON)),
        "alone": _copy(x),
    }[how]


def _add_layernorm(how: str, operands: Sequence[Tensor], activation: str, config: str) -> Run:
    x, residual, gain, bias = operands
    return {
        "fused": lambda: torch.ops.treering.add_layernorm(x, residual, gain, bias, EPSILON, config=config),
        "torch": lambda: functional.layer_norm(x + residual, gain.shape, gain, bias, EPSILON),
        "alone": _copy(x),
    }[how]


def _rmsnorm(how: str, operands: Sequence[Tensor], activation: str, config: str) -> Run:
    x, gain, _ = operands
    return {
        "fused": lambda: torch.ops.treering.rmsnorm(x, gain, EPSILON, config=config),
        "torch": lambda: functional.rms_norm(x, gain.shape, gain, EPSILON),
        "alone": _copy(x),
    }[how]


def _softmax(how: str, operands: Sequence[Tensor], activation: str, config: str) -> Run:
    x, mask, _ = operands
    return {
        "fused": lambda: torch.ops.treering.softmax(x, mask, scale=0.125, config=config),
        "torch": lambda: torch.softmax(x * 0.125 + mask, -1),
        "alone": _copy(x),
    }[how]


def _copy(x: Tensor) -> Run:
    into = torch.empty_like(x)
    return lambda: into.copy_(x)


FORMS: Final[dict[str, Callable[[str, Sequence[Tensor], str, str], Run]]] = {
    "linear_act": _linear_act,
    "layernorm_act": _layernorm_act,
    "add_layernorm": _add_layernorm,
    "rmsnorm": _rmsnorm,
    "softmax": _softmax,
}
