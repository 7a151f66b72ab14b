"""A pair of ``benchmarks.pairs`` in the forms that everyone reads, and our delta of it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

import ckpt
from benchmarks.cases.differs import ratio_figures
from benchmarks.pairs import HALVES, make, sources
from benchmarks.plan import Call

WHOLE, PART = "whole", "part"


@contextmanager
def prepare(
    *, work: Path, shared: Path, pair: str, part: str, kept: str, is_quick: bool, synthetic_mib: int
) -> Iterator[Call]:
    """All tensors, and those whose names hold ``part``: each half as a checkpoint and as a safetensors file.

    Args:
        pair: Its name.
        part: Of tensor names; "" makes no part.
        kept: The folder where pairs are kept from run to run; "" makes them for this run.
        is_quick, synthetic_mib: As of ``sources``.
    """
    folder = Path(kept) if kept else work

    def write() -> None:
        make(sources(is_quick=is_quick, synthetic_mib=synthetic_mib), folder, names=[pair])
        for half in HALVES:
            with ckpt.open(folder / pair / half) as checkpoint:
                tensors = {name: checkpoint[name].detach() for name in checkpoint}
                _write(tensors, shared / WHOLE, half)
                if part:
                    _write({name: tensors[name] for name in tensors if part in name}, shared / PART, half)

    yield Call(run=write)


@contextmanager
def delta(*, work: Path, shared: Path, part: str) -> Iterator[Call]:
    """``ckpt.diff`` under the clock: what it reads is checked, what it writes is synced; ``ckpt.apply`` after it."""
    folder, made = shared / part, work / "delta"

    def figures() -> Mapping[str, float]:
        started_s = time.perf_counter()
        ckpt.apply(folder / "base", made, work / "target")
        decode_s = time.perf_counter() - started_s
        found = ckpt.read_delta(made)
        frames_bytes = sum(patch.size_bytes for patch in found.patches)
        target = folder / "target.safetensors"
        return {
            **ratio_figures(target, patch_bytes=found.size_bytes),
            "decode_s": decode_s,
            "ratio_without_digests": target.stat().st_size / max(1, frames_bytes),
        }

    yield Call(run=lambda: ckpt.diff(folder / "base", folder / "target", made), figures=figures)


def _write(tensors: dict[str, Tensor], folder: Path, half: str) -> None:
    ckpt.save(tensors, folder / half)
    save_file(tensors, folder / f"{half}.safetensors")
