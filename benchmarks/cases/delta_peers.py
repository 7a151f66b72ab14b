"""Patches by general tools: zstd with the base as its dictionary, and bsdiff.

They read and write plain files of the weights' bytes; nothing is verified or synced. The zstd is the program itself:
its Python bindings load a dictionary in a way that leaves most of it unseen (64 MiB of weights with a new head of 1/64
gave a patch 1.7 times smaller than the weights; the program's is 81 times smaller). This module imports no torch.
"""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bsdiff4

from benchmarks.plan import Call

_ZSTD = ("zstd", "--quiet", "--long=30")  # a window of 1 GiB: all of the base is seen


@contextmanager
def zstd_make(*, work: Path, shared: Path, change: str) -> Iterator[Call]:
    """``zstd -3 --patch-from=base target``."""
    folder, patch = shared / change, work / "patch.zst"
    yield Call(
        run=lambda: zstd_diff(folder, patch),
        figures=lambda: size_figures(folder, patch_bytes=patch.stat().st_size),
        peak_bytes=_program_bytes,
    )


@contextmanager
def zstd_apply(*, work: Path, shared: Path, change: str) -> Iterator[Call]:
    """``zstd -d --patch-from=base patch``."""
    folder, patch = shared / change, work / "patch.zst"
    zstd_diff(folder, patch)
    command = [*_ZSTD, "-d", f"--patch-from={folder / 'base.bin'}", str(patch), "-o", str(work / "made.bin")]
    yield Call(run=lambda: subprocess.run(command, check=True), peak_bytes=_program_bytes)


@contextmanager
def bsdiff_make(*, work: Path, shared: Path, change: str) -> Iterator[Call]:
    """bsdiff4's own container, suffix sorting and bzip2."""
    folder, patch = shared / change, work / "patch.bsdiff"
    yield Call(
        run=lambda: _bsdiff(folder, patch),
        figures=lambda: size_figures(folder, patch_bytes=patch.stat().st_size),
    )


@contextmanager
def bsdiff_apply(*, work: Path, shared: Path, change: str) -> Iterator[Call]:
    """bspatch."""
    folder, patch = shared / change, work / "patch.bsdiff"
    _bsdiff(folder, patch)
    yield Call(run=lambda: bsdiff4.file_patch(folder / "base.bin", work / "made.bin", patch))


def zstd_diff(folder: Path, patch: Path) -> None:
    """Write the patch from a folder's base to its target."""
    command = [*_ZSTD, "-3", f"--patch-from={folder / 'base.bin'}", str(folder / "target.bin"), "-o", str(patch)]
    subprocess.run(command, check=True)


def size_figures(folder: Path, *, patch_bytes: int) -> dict[str, float]:
    """A patch's size, and how many times smaller it is than the target."""
    return {"patch_bytes": patch_bytes, "compression_ratio": (folder / "target.bin").stat().st_size / patch_bytes}


def _bsdiff(folder: Path, patch: Path) -> None:
    bsdiff4.file_diff(folder / "base.bin", folder / "target.bin", patch)


def _program_bytes() -> int:
    """The peak of the largest program that this process has waited for.

    A program is never seen smaller than the process that started it, which without torch holds 25 MiB.
    """
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
