"""The process that reads a foreign format: ``python -m ckpt.conversion.child KIND PATH OUT LIMITS``.

It limits its own memory, processor time and core dumps before it opens anything, dies with its parent, and needs no
network. Standard output carries one JSON object a line: ``{"done": …, "total": …}`` as it goes, then ``{"root": …}`` or
``{"error": …}``.
"""

import ctypes
import json
import resource
import signal
import sys
from pathlib import Path

from ckpt.conversion import dcp, npz, torch_file
from ckpt.errors import CheckpointError, FormatError
from ckpt.payload import read_manifest

_PR_SET_PDEATHSIG = 1


def main(kind: str, path: Path, out: Path, *, memory_bytes: int, cpu_s: int, unpacked_bytes: int) -> None:
    """Convert under limits; see the module's head."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for limit, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    progress = _Reported()
    try:
        if kind == "dcp":
            dcp.convert(path, out, progress)
        elif kind == "npz":
            npz.convert(path, out, progress, most_bytes=unpacked_bytes)
        else:
            torch_file.convert(path, out, progress)
        _tell(root=read_manifest(out).root)
    except FormatError as error:
        _tell(error=f"{error.where}: found {error.found}, expected {error.expected}.")
    except CheckpointError as error:
        _tell(error=str(error))
    except MemoryError:
        _tell(error=f"it needs more than {memory_bytes} bytes of memory.")
    except Exception as error:  # noqa: BLE001  (the edge of the process: the parent says it to its caller)
        _tell(error=f"{type(error).__name__}: {str(error)[:500]}.")


class _Reported:
    """Progress, told once for each hundredth."""

    def __init__(self) -> None:
        self._told = -1

    def __call__(self, done: int, total: int) -> None:
        hundredth = 100 * done // total if total else 100
        if hundredth != self._told:
            self._told = hundredth
            _tell(done=done, total=total)


def _tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), **json.loads(sys.argv[4]))
