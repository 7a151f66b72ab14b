"""Patches by general tools: zstd with the base as its dictionary, and bsdiff.

They read and write plain files of the weights' bytes; nothing is verified or synced. The zstd is the program itself:
its Python bindings load a dictionary in a way that leaves most of it unseen (64 MiB of weights with a new head of 1/64
gave a patch 1.7 times smaller than the weights; the program's is 81 times smaller). This module imports no torch.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bsdiff4

from benchmarks.plan import Call


@contextmanager
def zstd_make(*, work: Path, shared: Path, change: str) -> Iterator[Call]:
    """``zstd -3 --patch-from=base target``."""
    folder, patch = shared / change, work / "patch.zst"
    peaks: list[int] = []
    yield Call(
        run=lambda: peaks.append(_zstd_diff(folder, patch)),
        figures=lambda: size_figures(folder, patch_bytes=patch.stat().st_size),
        peak_bytes=lambda: peaks[0],
    )


@contextmanager
def zstd_apply(*, work: Path, shared: Path, change: str) -> Iterator[Call]:
    """``zstd -d --patch-from=base patch``."""
    folder, patch = shared / change, work / "patch.zst"
    _zstd_diff(folder, patch)
    peaks: list[int] = []
    yield Call(
        run=lambda: peaks.append(zstd("-d", base=folder / "base.bin", source=patch, out=work / "made.bin")),
        peak_bytes=lambda: peaks[0],
    )


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


def size_figures(folder: Path, *, patch_bytes: int) -> dict[str, float]:
    """A patch's size, and how many times smaller it is than the target."""
    return {"patch_bytes": patch_bytes, "compression_ratio": (folder / "target.bin").stat().st_size / patch_bytes}


def _bsdiff(folder: Path, patch: Path) -> None:
    bsdiff4.file_diff(folder / "base.bin", folder / "target.bin", patch)


def _zstd_diff(folder: Path, patch: Path) -> int:
    return zstd("-3", base=folder / "base.bin", source=folder / "target.bin", out=patch)


def zstd(what: str, *, base: Path, source: Path, out: Path) -> int:
    """Run zstd with a window of up to 2 GiB; returns the peak of its memory in bytes.

    The kernel never shows a program smaller than the process that started it, which without torch holds 25 MiB.
    """
    command = ["zstd", "--quiet", what, "--long=31", f"--patch-from={base}", str(source), "-o", str(out)]
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_maxrss * 1024
