"""Make a checkpoint of what other libraries wrote: ``torch.save`` files, NumPy's ``.npz``, folders of DCP.

Two of these formats are pickles. They are read by unpicklers that know plain values alone, and in a child process with
limits on memory and time, so that a file that finds a way around the first meets the second. A file that asks for more
is refused and nothing of it runs.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import torch

from ckpt.disk.commit import resolved, sweep
from ckpt.disk.hashing import Progress
from ckpt.errors import ConversionError, DestinationError
from ckpt.format.manifest import Manifest
from ckpt.reading.payload import read_manifest

_OLDEST_TORCH = (2, 10)  # below, weights_only has known holes (CVE-2025-32434, CVE-2026-24747)
# Python and torch take 0.9 GB of addresses; each thread that hashes reserves its stack and an arena.
_MEMORY_BYTES = 4 << 30
_MEMORY_BYTES_PER_THREAD = 160 << 20
_CPU_S = 120
_CPU_BYTES_PER_S = 32 << 20  # hashing and writing run at twenty times that
_WALL_PER_CPU = 10
# What an .npz may unpack to: deflate makes 1,000 of 1, weights are never that empty.
_UNPACKED_BYTES, _UNPACKED_RATIO = 1 << 30, 64


def convert(path: Path | str, out: Path | str, *, progress: Progress | None = None) -> Manifest:
    """Write a checkpoint of a file or folder in a foreign format.

    Args:
        path: A ``torch.save`` file (``.pt``, ``.pth``, ``.bin``, …), an ``.npz``, or a folder that
            ``torch.distributed.checkpoint`` wrote. The state keeps its nesting; of DCP, as its planner recorded it
            (whole numbers that were keys are text there).
        out: The checkpoint folder to be.
        progress: Called with (bytes done, bytes in all).

    Returns:
        The manifest.

    Raises:
        ConversionError: the file is cut short or altered, asks for more than plain values, holds what a checkpoint
            cannot, or exceeds the limits; or torch is older than 2.10. Nothing was written.
        DestinationError: ``out`` exists.
    """
    source, target = Path(path), Path(out)
    kind = _kind(source)
    if kind != "npz" and _version(torch.__version__) < _OLDEST_TORCH:
        raise ConversionError(source, f"torch is {torch.__version__}, expected 2.10 or newer to read pickles safely")
    if os.path.lexists(target):
        raise DestinationError(f"'{target}' exists already; expected a new path.", path=target)
    size = _size(source)
    unpacked = _UNPACKED_BYTES + _UNPACKED_RATIO * size if kind == "npz" else size
    limits = {
        "memory_bytes": _MEMORY_BYTES + (os.cpu_count() or 1) * _MEMORY_BYTES_PER_THREAD + 3 * size,
        "cpu_s": _CPU_S + unpacked // _CPU_BYTES_PER_S,
        "unpacked_bytes": unpacked,
    }
    said: dict[str, object] = {}
    with _child(
        [kind, str(source), str(target), json.dumps(limits)], target, wall_s=limits["cpu_s"] * _WALL_PER_CPU
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            said = json.loads(line)
            if "done" in said and progress is not None:
                progress(int(str(said["done"])), int(str(said["total"])))
    if "root" not in said:
        raise ConversionError(source, str(said.get("error") or _death(child.returncode, limits)))
    return read_manifest(target)


@contextmanager
def _child(arguments: list[str], out: Path, *, wall_s: int) -> "Iterator[subprocess.Popen[str]]":
    """The process that reads, ended with the block or after ``wall_s``."""
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "ckpt.conversion.child", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    timer = Timer(wall_s, child.kill)
    timer.start()
    try:
        yield child
        child.wait()
    finally:
        timer.cancel()
        child.kill()
        child.communicate()
        sweep(resolved(out))  # what it left, had it been ended while it wrote


def _kind(path: Path) -> str:
    if path.is_dir():
        if (path / ".metadata").is_file():
            return "dcp"
        raise ConversionError(path, "it is a folder without a .metadata file of torch.distributed.checkpoint")
    if not path.is_file():
        raise ConversionError(path, f"it is {'no regular file' if path.exists() else 'not there'}")
    if path.suffix == ".safetensors":
        raise ConversionError(path, "it is a safetensors file, which 'python -m ckpt adopt' takes as it is")
    return "npz" if path.suffix == ".npz" else "torch"


def _size(path: Path) -> int:
    files = [entry for entry in path.iterdir() if entry.is_file()] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _death(code: int, limits: dict[str, int]) -> str:
    if -code in (signal.SIGXCPU, signal.SIGKILL):
        return f"reading it took more than {limits['cpu_s']} s of processor time, or was ended from outside"
    return f"the process that read it ended with status {code}, for example for want of {limits['memory_bytes']} bytes"
