"""The facts that a measurement is worth nothing without: machine, versions, commit, load."""

import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = (
    "bsdiff4",
    "detools",
    "hdiffpatch",
    "mlflow",
    "numpy",
    "onnxruntime",
    "onnxscript",
    "pandas",
    "protobuf",
    "pyarrow",
    "pyxdelta",
    "safetensors",
    "torch",
    "triton",
    "z4ai",
    "zipnn",
    "zstandard",
)
PROGRAMS = ("zstd",)
REPOSITORY = Path(__file__).resolve().parent.parent


def machine_facts() -> dict[str, Any]:
    """CPU model, cores, memory, kernel, GPU, Python and versions (null where not installed), and the commit."""
    return {
        "cpu": _proc_field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "libraries": {
            **{name: _version(name) for name in LIBRARIES},
            **{f"program:{name}": _program_version(name) for name in PROGRAMS},
        },
        "commit": _git("rev-parse", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def load_average() -> float:
    """Processes that ran or waited to run, over the last minute: above the number of cores, figures are noisy."""
    return os.getloadavg()[0]


def _proc_field(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")


def _gpu() -> str | None:
    """Name and driver of each GPU, as nvidia-smi tells them; None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _program_version(program: str) -> str | None:
    if shutil.which(program) is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+(\.\d+)+", said)
    return found.group() if found else said.strip()


def _git(*arguments: str) -> str | None:
    """What git says about this checkout; None where it is none, as in an image."""
    if not (REPOSITORY / ".git").exists():
        return None
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
