"""The area ``kernels``: on a GPU, fused operators beside torch's own (products, rows, what is all launch), and a model.

Needs a CUDA device. Every call reads another set of operands, of which there are more than the device's cache holds.
Products and rows are captured in a graph, so that their seconds are the device's; launches are the host's.
"""

from typing import Final

import torch

from benchmarks.errors import NoGpuError
from benchmarks.plan import Comparison, Side, Stage

_PRODUCTS: Final = ((4096, 4096, 4096), (8192, 8192, 2048), (8192, 8192, 8192))
_ROWS: Final = ((4096, 1024), (4096, 4096), (16384, 4096), (65536, 1024))
_SMALL: Final = 384
_MODEL: Final = "benchmarks.cases.gpu_model"
_LAUNCH_NOTE: Final = (
    "The host's time for a call: operands this small take the device less than a launch takes the host."
)
_COPY_NOTE: Final = (
    "A copy reads and writes as many bytes as one operand and the result have. TB/s count what must be moved."
)
_PRODUCT_NOTE: Final = (
    "The first peer is what cuBLAS takes without the activation. bfloat16, normally distributed operands."
)


def stages(is_quick: bool) -> tuple[Stage, ...]:
    """Products, rows, launches.

    Raises:
        NoGpuError: torch finds no CUDA device.
    """
    if not torch.cuda.is_available():
        raise NoGpuError("kernels")
    return plan(is_quick)


def plan(is_quick: bool) -> tuple[Stage, ...]:
    """The stages, whatever there is to run them on."""
    products = ((256, 256, 256),) if is_quick else _PRODUCTS
    rows = ((64, 1024),) if is_quick else _ROWS
    return (
        _stage("products", [_product(activation, *size) for size in products for activation in ("gelu", "silu")]),
        _stage("rows", [_over_rows(operator, *size) for operator in _ROW_OPERATORS for size in rows]),
        _stage("launches", [_launch(operator) for operator in ("linear_act", "layernorm_act", "add_layernorm")]),
        _model(),
    )


_ROW_OPERATORS: Final = ("layernorm_act", "add_layernorm", "rmsnorm", "softmax")


def _stage(name: str, comparisons: list[Comparison]) -> Stage:
    return Stage(name=name, prepare="benchmarks.cases.kernels:prepare", comparisons=tuple(comparisons))


def _side(
    name: str,
    how: str,
    operator: str,
    rows: int,
    columns: int,
    depth: int = 0,
    activation: str = "gelu",
    *,
    is_captured: bool = True,
) -> Side:
    return Side(
        name=name,
        case="benchmarks.cases.kernels:calls",
        parameters={
            "how": how,
            "operator": operator,
            "rows": rows,
            "columns": columns,
            "depth": depth,
            "activation": activation,
            "is_captured": is_captured,
        },
        is_ours=how == "fused",
    )


def _product(activation: str, rows: int, columns: int, depth: int) -> Comparison:
    size = ("linear_act", rows, columns, depth, activation)
    return Comparison(
        name=f"linear + bias + {activation}, {rows} × {columns} × {depth}",
        note=_PRODUCT_NOTE,
        sides=(
            _side("treering.linear_act", "fused", *size),
            _side("torch.addmm alone", "alone", *size),
            _side("torch, two operators", "torch", *size),
        ),
    )


def _over_rows(operator: str, rows: int, columns: int) -> Comparison:
    return Comparison(
        name=f"{operator}, {rows} × {columns}",
        note=_COPY_NOTE,
        sides=(
            _side(f"treering.{operator}", "fused", operator, rows, columns),
            _side("torch", "torch", operator, rows, columns),
            _side("copy", "alone", operator, rows, columns),
        ),
    )


def _launch(operator: str) -> Comparison:
    size = (operator, _SMALL, _SMALL, _SMALL)
    return Comparison(
        name=f"{operator}, {_SMALL} squared",
        note=_LAUNCH_NOTE,
        sides=(
            _side(f"treering.{operator}", "fused", *size, is_captured=False),
            _side("torch, two operators", "torch", *size, is_captured=False),
        ),
    )


def _model() -> Stage:
    sides = {"program (eager)": "program", "torch.compile, reduce-overhead": "torch_compile", "eager PyTorch": "eager"}
    return Stage(
        name="minilm",
        prepare=f"{_MODEL}:prepare",
        comparisons=tuple(
            Comparison(
                name=f"MiniLM, {rows} × 128 tokens",
                note="bfloat16, random weights. Graphs of either see new weights that are written in place.",
                sides=tuple(
                    Side(name=name, case=f"{_MODEL}:{case}", parameters={"rows": rows}, is_ours=case == "program")
                    for name, case in sides.items()
                ),
            )
            for rows in (1, 32)
        ),
    )
