"""``python -m benchmarks.live_memory --device cuda --gb 14``: a patch in live memory at the size of a large model.

Random bfloat16 in tensors of 64 MiB, of which one element in a hundred moves by a unit; both halves and the delta lie
in a folder in memory. Prints what staging takes and medians of 9 calls of ``apply``, beside torch's own call for the
same elements and a copy of everything.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

import ckpt
from benchmarks.cases.delta_speed import MEMORY

_ELEMENTS = 1 << 25
_SHARE = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = _parser().parse_args(arguments)
    with TemporaryDirectory(dir=MEMORY, prefix="treering-live-") as folder:
        measure(Path(folder), device=options.device, count=max(round(options.gb * 1e9 / 2 / _ELEMENTS), 1))
    return 0


def measure(folder: Path, *, device: str, count: int, elements: int = _ELEMENTS) -> None:
    """Print the figures of a model of ``count`` tensors."""
    random = torch.Generator(device=device).manual_seed(1)
    live = {f"t{n}": torch.randn(elements, generator=random, device=device).bfloat16() for n in range(count)}
    target = {name: _moved(tensor, random) for name, tensor in live.items()}
    base, goal = ckpt.save(live, folder / "base"), ckpt.save(target, folder / "target")
    made = ckpt.diff(folder / "base", folder / "target", folder / "delta", codecs=("sparse",))
    started_s = time.perf_counter()
    patch = ckpt.stage(folder / "delta", live, manifest=base)
    print(f"{base.payload_bytes / 1e9:.2f} GB on {device}, 1 % changed: a delta of {made.size_bytes / 1e6:.1f} MB")
    print(f"  staged and proved in {time.perf_counter() - started_s:.1f} s, keeps {patch.size_bytes / 1e9:.2f} GB")
    for threads in (1,) if torch.device(device).type == "cuda" else (1, 2, None):
        _tell(f"apply, {threads or 'all'} threads", partial(patch.apply, threads=threads), device)
    if patch.confirm().root != goal.root:
        raise AssertionError("apply made something else")
    patch.undo()
    parts = []
    for name, tensor in live.items():
        memory, values = tensor.view(torch.int16), target[name].view(torch.int16)
        positions = (memory != values).nonzero().flatten()
        parts.append((memory, positions, values[positions]))
    _tell("index_copy_ alone", lambda: [memory.index_copy_(0, *rest) for memory, *rest in parts], device)
    _tell("copy_ of everything", lambda: [tensor.copy_(target[name]) for name, tensor in live.items()], device)


def _moved(tensor: Tensor, random: torch.Generator) -> Tensor:
    bits = tensor.view(torch.int16)
    moved = torch.rand(bits.shape, generator=random, device=bits.device) < _SHARE
    return (bits + moved.to(torch.int16)).view(torch.bfloat16)


def _tell(what: str, run: Callable[[], object], device: str) -> None:
    taken_s = []
    for _ in range(10):
        started_s = time.perf_counter()
        run()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        taken_s.append(time.perf_counter() - started_s)
    taken_s = taken_s[1:]
    print(f"  {what:24} {median(taken_s) * 1e3:8.2f} ms ({min(taken_s) * 1e3:.2f} to {max(taken_s) * 1e3:.2f})")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_memory", description="A patch in live memory.")
    parser.add_argument("--device", default="cpu", help="a device of torch (default: %(default)s)")
    parser.add_argument("--gb", type=float, default=1.0, help="size of the model, in GB (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
