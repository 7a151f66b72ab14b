"""``python -m benchmarks.tune_kernels OPERATOR ROWS COLUMNS [DEPTH]``: which configuration of a kernel is fastest here.

Every configuration that the device can hold is timed on operands beyond its cache, best of two passes. Printed are the
fastest ones as rows of ``compiler.kernels.configurations.TABLE``, the measurement in each; a person puts the first one
there. Needs a CUDA device. Nothing tunes while it serves.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Final

import torch

from benchmarks.cases.kernels import FORMS, rate, runs_of, seconds_of
from benchmarks.errors import BenchmarkError, NoGpuError
from command_line import run_command
from compiler.kernels.configurations import Config, Measured, RowConfig, TileConfig, budget

SHOWN: Final = 5
CALLS: Final = 50
_THREADS: Final = 2048  # of a multiprocessor
_ELEMENT_BYTES: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Time every candidate and print the best."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        print("\n".join(f"    {row}," for row in tune(options.operator, options.rows, options.columns, options.depth)))
    except BenchmarkError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def tune(operator: str, rows: int, columns: int, depth: int) -> list[Measured]:
    """The fastest configurations of an operator at a size, on the current device.

    Raises:
        NoGpuError: torch finds no CUDA device.
    """
    if not torch.cuda.is_available():
        raise NoGpuError("tune_kernels")
    device = torch.device("cuda", torch.cuda.current_device())
    timed = [
        (_seconds(operator, rows, columns, depth, config=config), config)
        for config in candidates(operator, columns, depth, device=device)
    ]
    return fastest(operator, rows, columns, depth, timed=timed, device=device)


def _seconds(operator: str, rows: int, columns: int, depth: int, *, config: Config) -> float:
    runs = runs_of("fused", operator, rows, columns, depth, activation="gelu", device="cuda", config=str(config))
    return min(seconds_of(runs, CALLS, device="cuda") for _ in range(2))


def candidates(operator: str, columns: int, depth: int, *, device: torch.device) -> Iterator[Config]:
    """Every configuration worth a measurement: what fits into registers and shared memory and keeps threads busy."""
    if operator == "linear_act":
        sizes = product((16, 32, 64, 128), (32, 64, 128, 256), (32, 64, 128), (8, 16), (4, 8), (2, 3, 4), (0, 1, 2))
        for m, n, k, group, warps, stages, programs in sizes:
            tile = TileConfig(m=m, n=n, k=k, group=group, warps=warps, stages=stages, programs=programs)
            if tile.fits(device, element_bytes=_ELEMENT_BYTES) and m * n >= 256 * warps and k <= max(32, depth):
                yield tile
        return
    held = 1 << (columns - 1).bit_length()
    blocks = product((1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32), (0, 1, 2, 4, 8), (1, 3))
    for number, warps, programs, stages in blocks:
        elements = number * held // (32 * warps)
        if 4 <= elements <= 64 and programs * warps * 32 <= _THREADS and (programs or stages == 1):
            yield RowConfig(rows=number, warps=warps, programs=programs, stages=stages)


def fastest(
    operator: str,
    rows: int,
    columns: int,
    depth: int,
    *,
    timed: Sequence[tuple[float, Config]],
    device: torch.device,
) -> list[Measured]:
    """Rows of the table for the ``SHOWN`` fastest of some timed configurations, fastest first."""
    shape = f"{rows} × {columns}" + (f" × {depth}" if operator == "linear_act" else "")
    day = datetime.now(UTC).date().isoformat()
    table = []
    for seconds, config in sorted(timed, key=lambda one: one[0])[:SHOWN]:
        ((unit, value),) = rate("fused", operator, rows, columns, depth, seconds=seconds).items()
        table.append(
            Measured(
                device=budget(device).name,
                operator=operator,
                bits=8 * _ELEMENT_BYTES,
                size=min(rows, columns) if operator == "linear_act" else columns,
                config=config,
                evidence=f"{shape}: {seconds * 1e6:.1f} µs, {value:.2f} {unit}, {day}",
            )
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tune_kernels", description="The fastest configurations."
    )
    parser.add_argument("operator", choices=sorted(FORMS))
    parser.add_argument("rows", type=int)
    parser.add_argument("columns", type=int)
    parser.add_argument("depth", type=int, nargs="?", default=0, help="of linear_act: the length of its sums")
    return parser


if __name__ == "__main__":
    sys.exit(main())
