"""Read what ``torch.save`` wrote: by torch's own restricted unpickler, which knows tensors and plain values alone.

NumPy's arrays and scalars are plain values too: random states hold some. Any other global in the pickle is refused
before it is looked up. A zip file is mapped, so that its tensors are read when they are written.
"""

import io
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from ckpt.conversion.archive import checked_archive
from ckpt.disk.hashing import Progress
from ckpt.errors import FormatError
from ckpt.saving.writer import save

_ZIP = b"PK\3\4"
_NUMERIC = "?bBhHiIlLqQefdFD"
_UNREADABLE = (
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    struct.error,
)


def convert(path: Path, out: Path, progress: Progress | None) -> None:
    """Write the state in a ``torch.save`` file as a checkpoint."""
    with open(path, "rb") as file:
        is_zip = check_entries(file, path.name, size_bytes=path.stat().st_size)
    save(load(path, mapped=is_zip), out, progress=progress)


def check_entries(file: BinaryIO, where: str, *, size_bytes: int) -> bool:
    """Whether the file is a zip file; one that torch writes holds each entry as it is.

    Raises:
        FormatError: a zip file that torch would not write.
    """
    is_zip = file.read(len(_ZIP)) == _ZIP
    if is_zip:
        checked_archive(file, where, methods={zipfile.ZIP_STORED}, most_bytes=size_bytes)
    return is_zip


def load(source: Path | io.BytesIO, *, mapped: bool = False) -> object:
    """The state in a file, on the CPU.

    Raises:
        FormatError: a global that is no plain value, or a file that torch cannot read.
    """
    where = source.name if isinstance(source, Path) else "an entry"
    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        named = re.search(r"(?:GLOBAL|[Gg]lobal:?) (?!GLOBAL)([\w.]+)", str(error))
        found = f"a pickle that asks for '{named[1]}'" if named else "no pickle, or one of more than plain values"
        raise FormatError(where, found, "tensors, NumPy arrays and plain values, as a state_dict() is") from None
    except _UNREADABLE as error:
        if "allocate memory" in str(error):  # torch's own words for it, and those of the system
            raise MemoryError from None
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FormatError(where, f"what torch cannot read ({first[:200]})", "a torch file") from None


def _numpy_globals() -> list[Any]:
    types = {type(np.dtype(code)) for code in _NUMERIC}
    reconstruct = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    scalar = np._core.multiarray.scalar  # type: ignore[attr-defined]
    old = [(function, f"numpy.core.multiarray.{function.__name__}") for function in (reconstruct, scalar)]
    return [np.ndarray, np.dtype, reconstruct, scalar, *old, *types]
