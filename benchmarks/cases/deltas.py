"""Deltas between checkpoints: what changed, small, and back to the target, proved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import ckpt
from benchmarks.cases.delta_peers import size_figures
from benchmarks.cases.weights import bfloat16_weights, body_and_head, stepped, with_new_head
from benchmarks.plan import Call

STEP_SHARE = 0.01


@contextmanager
def prepare(*, work: Path, shared: Path, size_bytes: int, small_bytes: int) -> Iterator[Call]:
    """For each change a base and a target, as checkpoints and as plain bytes, and the delta between them."""

    def write() -> None:
        weights = bfloat16_weights(size_bytes, seed=0)
        small = weights[: small_bytes // 2]
        for change, base, target in (
            ("steps", weights, stepped(weights, share=STEP_SHARE)),
            ("head", weights, with_new_head(weights)),
            ("small", small, stepped(small, share=STEP_SHARE)),
        ):
            folder = shared / change
            for name, state in (("base", base), ("target", target)):
                ckpt.save(body_and_head(state), folder / name)
                (folder / f"{name}.bin").write_bytes(state.view(torch.uint8).numpy().tobytes())
            ckpt.diff(folder / "base", folder / "target", folder / "delta")

    yield Call(run=write)


@contextmanager
def diff(*, work: Path, shared: Path, change: str) -> Iterator[Call]:
    """From folder to folder; every chunk that is read is checked first."""
    folder, made = shared / change, work / "delta"

    yield Call(
        run=lambda: ckpt.diff(folder / "base", folder / "target", made),
        figures=lambda: size_figures(folder, patch_bytes=ckpt.read_delta(made).size_bytes),
    )


@contextmanager
def apply(*, work: Path, shared: Path, change: str) -> Iterator[Call]:
    """The target's folder, its root proved, synced and renamed into place."""
    folder = shared / change
    yield Call(run=lambda: ckpt.apply(folder / "base", folder / "delta", work / "made"))
