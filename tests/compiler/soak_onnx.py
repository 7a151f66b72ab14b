"""Compile every network of the zoo for ONNX, and compare the files with eager mode; not collected by pytest.

    python -m tests.compiler.soak_onnx [NAME …]

At batch sizes 1, 2, 7 and 8 in ONNX Runtime, at 8 in WebAssembly under Node: the largest difference over the largest
output, at most 1e-4. Ends with exit code 1 if one is larger.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

import compiler
from compiler.backends.onnx_files import GRAPH_FILE, write_files
from compiler.dynamic import input_names
from tests.compiler.families.case import make_wild
from tests.compiler.zoo.test_compiler_zoo import ZOO

BOUND = 1e-4
ROWS = (1, 2, 7, 8)
NODE_SCRIPT = Path(__file__).parent / "web" / "run.mjs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks of the zoo; all if none is named")
    names = parser.parse_args().names or list(ZOO)
    torch.set_num_threads(1)
    worst = 0.0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            native, wasm = _compare(name, Path(folder) / "web")
        print(f"{name:12} ONNX Runtime {native:.1e}  WebAssembly {wasm:.1e}", flush=True)
        worst = max(worst, native, wasm)
    return 1 if worst > BOUND else 0


def _compare(name: str, folder: Path) -> tuple[float, float]:
    build, example, _ = ZOO[name]
    torch.manual_seed(0)
    model = build().eval()
    make_wild(model)
    (given,) = input_names(model, (example,))
    dynamic = {given: {0: compiler.Dim(name="rows", max=max(ROWS))}}
    program = compiler.compile(model, (example,), dynamic=dynamic, backend="onnx")
    memory = program.allocate()
    program.evaluate(model.state_dict(), memory)
    write_files(program.packages["targets/onnx-any.onnx"], program.constants, memory, folder)
    session = onnxruntime.InferenceSession(folder / GRAPH_FILE, providers=["CPUExecutionProvider"])
    native = 0.0
    for rows in ROWS:
        x = _batch(example, rows)
        (found,) = session.run(None, {given: x.numpy()})
        native = max(native, _off(found, model, x))
    np.save(folder / "x.npy", x.numpy())
    done = subprocess.run(["node", NODE_SCRIPT, folder, "1"], check=True, capture_output=True, text=True)
    (output,) = json.loads(done.stdout)["outputs"].values()
    return native, _off(np.array(output["data"]).reshape(output["dims"]), model, x)


def _batch(example: Tensor, rows: int) -> Tensor:
    """The example's rows, over and over, each from another place on."""
    return torch.stack([example[row % len(example)].roll(row, -1) for row in range(rows)])


def _off(found: "np.ndarray[tuple[int, ...], np.dtype[np.floating]]", model: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        expected = model(x).numpy()
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


if __name__ == "__main__":
    sys.exit(main())
