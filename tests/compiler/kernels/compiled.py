"""Compile every kernel for a Hopper GPU without having one, and tell what each takes: ``python -m …compiled [all]``.

Prints a JSON line for each: operator, registers for each thread, bytes of its stack (spilled registers) and of shared
memory, and what its code has of the machine's wide instructions. Runs as a program of its own, as ``TRITON_INTERPRET``
is 0 here. With ``all`` every length of rows that is a power of two is compiled, too.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from compiler.kernels import configurations, launching, linear_act_persistent, rows
from compiler.kernels.configurations import Budget, TileConfig
from tests.compiler.kernels.cases import ACTIVATIONS, CALLS, Call, Draw, kernel

H200: Final = Budget(name="NVIDIA H200", processors=132, shared_bytes=232_448)
_DTYPES: Final = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.uint8: "u8"}
_CUOBJDUMP: Final = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Compiled:
    """Stands for a launch: what would run is compiled instead."""

    found: dict[str, int]

    def __init__(self, kernel: Any, *, settings: Sequence[Any], **options: Any) -> None:
        self._kernel, self._settings = kernel, settings
        self._options = {name: value for name, value in options.items() if name.startswith("num_")}

    def __call__(self, *tensors: Tensor | None) -> None:
        """Compile for tensors of these dtypes, aligned as torch allocates them."""
        parameters = self._kernel.params
        signature: dict[str, str] = {}
        constants: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], Any] = {}
        for place, (parameter, value) in enumerate(zip(parameters, (*tensors, *self._settings), strict=True)):
            kind = "constexpr" if parameter.is_constexpr else _kind(value)
            signature[parameter.name] = kind
            if kind == "constexpr":
                constants[(place,)] = value
            elif isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
                attributes[(place,)] = [["tt.divisibility", 16]]
        source = triton.compiler.ASTSource(self._kernel, signature, constexprs=constants, attrs=attributes)
        Compiled.found = _made(source, self._options)


def _made(source: Any, options: dict[str, Any]) -> dict[str, int]:
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return {**_usage(made.asm["cubin"]), **_code(made.asm["ptx"]), "shared": made.metadata.shared, **options}


def persistent(tile: TileConfig) -> dict[str, int]:
    """The kernel that goes through tiles, which is given descriptors and so no launch of its own."""
    halves = tile.is_stored_in_halves(torch.device("cpu"), element_bytes=2)
    blocks = ((tile.m, tile.k), (tile.n, tile.k), (tile.m, tile.n // 2 if halves else tile.n))
    words = ("silu", tile.m, tile.n, tile.k, tile.group, halves, False)
    kernel = linear_act_persistent._kernel
    kinds = [f"tensordesc<bf16[{rows},{columns}]>" for rows, columns in blocks] + ["*bf16", "i32", "i32", "i32"]
    signature = dict(zip(kernel.arg_names, kinds + ["constexpr"] * len(words), strict=True))
    constants = {(len(kinds) + place,): word for place, word in enumerate(words)}
    attributes = {(place,): [["tt.divisibility", 16]] for place in range(3, 7)}
    source = triton.compiler.ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    return _made(source, {"num_warps": tile.warps, "num_stages": tile.stages})


def _kind(value: Any) -> str:
    if value is None or (isinstance(value, int) and value == 1):
        return "constexpr"
    if isinstance(value, Tensor):
        return "*" + _DTYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i64" if value >= 2**31 else "i32"


def _usage(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_CUOBJDUMP), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = re.findall(r"REG:(\d+) STACK:(\d+)", said)
    return {"registers": int(line[0]), "stack": int(line[1])}


def _code(ptx: str) -> dict[str, int]:
    """Bits of the widest load from global memory; how often a warp group multiplies and the copy engine is asked."""
    loads = [int(count) * int(bits) for count, bits in re.findall(r"ld\.global\S*\.v(\d)\.b(\d+)", ptx)]
    return {
        "load_bits": max(loads, default=0),
        "group_products": ptx.count("wgmma.mma_async"),
        "bulk_copies": ptx.count("cp.async.bulk.tensor"),
    }


def calls(*, is_all: bool) -> Iterator[tuple[str, str, Call]]:
    """Operator, what is particular, call: operands on the CPU, of the shapes that matter on a GPU."""
    half, single = Draw(0, torch.bfloat16, "cpu"), Draw(0, torch.float32, "cpu")
    for operator, call in CALLS.items():
        yield operator, "bfloat16", call(half, 64, 768, 512)
        if is_all:
            yield operator, "float32", call(single, 64, 768, 512)
    x = half(2, 3, 64, 64)
    yield "softmax", "added mask", ((x, half(2, 1, 1, 64)), {})
    yield "softmax", "no mask", ((x, None), {})
    yield "layernorm_act", "no vectors", ((x, None, None, 1e-5, "silu"), {})
    yield "add_layernorm", "no vectors", ((x, x, None, None, 1e-5), {})
    far = torch.empty(1 << 32, dtype=torch.bfloat16).as_strided((1 << 20, 8), (4096, 1))  # takes no memory: not touched
    yield "rmsnorm", "beyond 32 bits", ((far, None, 1e-6), {})
    for size in (32, 512, 4096):
        yield "linear_act", f"{size} squared", ((half(1, 64).expand(size, 64), half(size, 64), None, "silu"), {})
    yield "linear_act", "no bias, one column", ((half(64, 1), half(1, 1), None, "relu"), {})
    for activation in ACTIVATIONS if is_all else ():
        yield "layernorm_act", activation, CALLS["layernorm_act"](half, 8, 8, activation=activation)
    for precision in ("tf32", "tf32x3", "ieee") if is_all else ():
        yield "linear_act", precision, CALLS["linear_act"](single, 512, 512, 512, input_precision=precision)
    for columns in [1 << power for power in range(17)] if is_all else ():
        for operator in [name for name in CALLS if name != "linear_act"]:
            yield operator, f"{columns} columns", CALLS[operator](half, 4, columns)


def main() -> None:
    """Compile and print."""
    launching.Launch = rows.Launch = Compiled  # type: ignore[misc, assignment]
    configurations.budget = rows.budget = lambda device: H200  # type: ignore[assignment]
    for operator, what, (positional, named) in calls(is_all="all" in sys.argv):
        function = kernel(operator)
        sys.modules[function.__module__].Launch = Compiled  # type: ignore[attr-defined]
        function(*positional, **named)
        print(json.dumps({"operator": operator, "what": what, **Compiled.found}), flush=True)
    tiles = [row.config for row in configurations.TABLE if isinstance(row.config, TileConfig)]
    for tile in {tile.programs: tile for tile in tiles if tile.programs}.values():
        found = {**persistent(tile), "programs": tile.programs}
        print(json.dumps({"operator": "linear_act", "what": "persistent", **found}), flush=True)


if __name__ == "__main__":
    main()
