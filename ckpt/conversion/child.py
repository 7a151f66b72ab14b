"""The process that reads a foreign format: ``python -m ckpt.conversion.child KIND PATH OUT LIMITS``.

It limits its own memory, processor time and core dumps before it opens anything, dies with its parent, and needs no
network. Standard output carries one JSON object a line: ``{"done": …, "total": …}`` as it goes, then ``{"root": …}`` or
``{"error": …}``.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TextIO

from ckpt.disk.hashing import Progress
from ckpt.errors import CheckpointError, FormatError
from ckpt.reading.payload import read_manifest

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
    said = _Said(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what a library prints does not get between the lines
    try:
        _convert(kind, path, out, said.progress, unpacked_bytes=unpacked_bytes)
        said.tell(root=read_manifest(out).root)
    except FormatError as error:
        said.tell(error=f"{error.where}: found {error.found}, expected {error.expected}.")
    except CheckpointError as error:
        said.tell(error=str(error))
    except MemoryError:
        said.tell(error=f"it needs more than {memory_bytes} bytes of memory.")
    except Exception as error:  # noqa: BLE001  (the edge of the process: the parent says it to its caller)
        said.tell(error=f"{type(error).__name__}: {str(error)[:500]}.")


def _convert(kind: str, path: Path, out: Path, progress: Progress, *, unpacked_bytes: int) -> None:
    """Each kind imports what it needs alone: not every torch has its distributed part."""
    if kind == "dcp":
        from ckpt.conversion import dcp

        dcp.convert(path, out, progress)
    elif kind == "npz":
        from ckpt.conversion import npz

        npz.convert(path, out, progress, most_bytes=unpacked_bytes)
    else:
        from ckpt.conversion import torch_file

        torch_file.convert(path, out, progress)


class _Said:
    """The lines to the parent; of progress, one for each hundredth."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._hundredth = file, -1

    def tell(self, **facts: object) -> None:
        print(json.dumps(facts), file=self._file, flush=True)

    def progress(self, done: int, total: int) -> None:
        hundredth = 100 * done // total if total else 100
        if hundredth != self._hundredth:
            self._hundredth = hundredth
            self.tell(done=done, total=total)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), **json.loads(sys.argv[4]))
