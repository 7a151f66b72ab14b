"""A delta applied in live memory, beside what torch's own calls take for the same elements, and for all bytes.

Everything is in memory, and was written there once, before the clock starts: ours is staged and verified, the others
have positions and values as they like them. ``device`` is any of torch's; what runs on it has ended when the clock
stops.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

import ckpt
from benchmarks.plan import Call, Figures

TENSOR_BYTES = 64 << 20
SHARE = 0.01  # of the elements that move

CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "index_copy_": lambda memory, positions, values: memory.index_copy_(0, positions, values),
    "index_put_": lambda memory, positions, values: memory.index_put_((positions,), values),
}


@contextmanager
def prepare(*, work: Path, shared: Path, size_mib: int, device: str) -> Iterator[Call]:
    """Random bfloat16 that is made on the device, the same after a step of a unit, and the delta between them."""

    def write() -> None:
        random = torch.Generator(device=device).manual_seed(1)
        parts = range(0, size_mib << 20, TENSOR_BYTES)
        sizes = [min((size_mib << 20) - start, TENSOR_BYTES) // 2 for start in parts]
        live = {f"t{n}": torch.randn(size, generator=random, device=device).bfloat16() for n, size in enumerate(sizes)}
        ckpt.save(live, shared / "base")
        for tensor in live.values():
            tensor.view(torch.int16).add_(torch.rand(tensor.shape, generator=random, device=device) < SHARE)
        ckpt.save(live, shared / "target")
        ckpt.diff(shared / "base", shared / "target", shared / "all", codecs=("sparse",))

    yield Call(run=write)


@contextmanager
def apply(*, work: Path, shared: Path, threads: int, device: str) -> Iterator[Call]:
    """The target's values over the base; figures: bytes that the patch keeps, and of all tensors."""
    live = ckpt.load(shared / "base", device=device, mmap=False)
    manifest = ckpt.read_manifest(shared / "base")
    patch = ckpt.stage(shared / "all", live, manifest=manifest)
    patch.apply()
    patch.undo()

    def figures() -> Figures:
        assert patch.confirm().root == ckpt.read_manifest(shared / "target").root
        return {"kept_bytes": patch.size_bytes, "memory_bytes": manifest.payload_bytes}

    def run() -> None:
        patch.apply(threads=threads)
        _wait(device)

    yield Call(run=run, figures=figures)


@contextmanager
def torch_call(*, work: Path, shared: Path, call: str, device: str) -> Iterator[Call]:
    """One of torch's own calls for each tensor, with positions of 8 bytes."""
    live, target = (ckpt.load(shared / half, device=device, mmap=False) for half in ("base", "target"))
    parts = []
    for name, tensor in live.items():
        memory, values = (each.view(-1).view(torch.int16) for each in (tensor, target.pop(name)))
        positions = (memory != values).nonzero().flatten()
        parts.append((memory, positions, values[positions]))

    def run() -> None:
        for part in parts:
            CALLS[call](*part)
        _wait(device)

    run()
    yield Call(run=run)


@contextmanager
def copy_all(*, work: Path, shared: Path, device: str) -> Iterator[Call]:
    """Every tensor of the target over the base's: what a reload from memory costs at least."""
    live, target = (ckpt.load(shared / half, device=device, mmap=False) for half in ("base", "target"))

    def run() -> None:
        for name, tensor in live.items():
            tensor.copy_(target[name])
        _wait(device)

    run()
    yield Call(run=run)


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
