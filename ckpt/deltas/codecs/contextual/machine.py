"""The loops of the codec as machine code: compiled once by Numba, kept as object files, loaded by LLVM's linker.

Numba's own cache is made of pickles, which nothing here reads. An object file is kept by the digest of what it was
compiled from and for: our sources, the versions of Numba and LLVM, this processor. A process that finds it loads it in
30 ms and does not import Numba; one that does not compiles, which takes some seconds. It is native code, believed as
the bytecode of Python is: only where nobody but its owner could have written it.
"""

import ctypes
import hashlib
import os
import stat
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

# Name → arguments, a an address and i a whole number; the part after the dash is the dtype of elements.
_MODEL = "aai" + "iiiiii"
ENTRIES = {
    **{f"count-{kind}": f"{_MODEL}a" for kind in ("u1", "u2", "u4")},
    **{f"events-{kind}": f"{_MODEL}aaaaia" for kind in ("u1", "u2", "u4")},
    "model": "aaaai" + "aaii",
    "write": "aaiai",
    **{f"decode-{kind}": f"{_MODEL}aiaiaaaiaa" for kind in ("u1", "u2", "u4")},
}
_SOURCES = ("coder.py", "compiling.py", "decay.py", "layout.py", "loops.py", "machine.py")
_DIGEST_BYTES = 32
# Numba's runtime, which object files name and never call: nothing is freed in them, no error is raised.
_RUNTIME = (
    "NRT_Free", "NRT_MemInfo_call_dtor", "numba_do_raise", "numba_gil_ensure", "numba_gil_release",
    "numba_runtime_build_excinfo_struct", "numba_unpickle",
)  # fmt: skip
_UNREACHED = "declare void @abort()\n" + "\n".join(
    f"define void @{name}() {{ call void @abort()\n unreachable }}" for name in _RUNTIME
)
_lock = Lock()


def call(name: str, *arguments: NDArray[np.generic] | int) -> int:
    """Run a loop beside other threads; arrays are contiguous, of the dtypes and shapes that it expects."""
    taken = [each if isinstance(each, int) else each.ctypes.data for each in arguments]
    return int(_function(name)(*taken))


@cache
def _function(name: str) -> "ctypes._FuncPointer":
    with _lock:
        types = [ctypes.c_void_p if kind == "a" else ctypes.c_int64 for kind in ENTRIES[name]]
        symbol, code = _kept(name) or _keep(name, *_compiled(name))
        return ctypes.CFUNCTYPE(ctypes.c_int64, *types)(_loaded(symbol, code))


@cache
def _linker() -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(_UNREACHED), machine)


def _loaded(symbol: str, code: bytes) -> int:
    linker = _linker()
    linker.add_object_file(llvm.ObjectFileRef.from_data(code))
    linker.finalize_object()
    return int(linker.get_function_address(symbol))


def _compiled(name: str) -> tuple[str, bytes]:
    """The symbol and the object file of a loop."""
    from numba import cfunc, types

    from ckpt.deltas.codecs.contextual.loops import entry

    taken = [types.voidptr if kind == "a" else types.int64 for kind in ENTRIES[name]]
    made: Any = cfunc(types.int64(*taken), error_model="numpy")(entry(name))
    return made._wrapper_name, made._library._get_compiled_object()


@cache
def _key() -> str:
    """What an object file depends on."""
    here = Path(__file__).parent
    parts = [version("numba"), version("llvmlite"), sys.platform, llvm.get_host_cpu_name()]
    parts.append(llvm.get_host_cpu_features().flatten())
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in _SOURCES:
        digest.update(hashlib.sha256((here / source).read_bytes()).digest())
    return digest.hexdigest()[:32]


def _folders() -> list[Path]:
    """Where object files are kept: beside Python's bytecode, else in the cache of a user who has one."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return [Path(__file__).parent / "__pycache__", *([caches / "treering-ckpt"] if caches.is_absolute() else [])]


def _kept(name: str) -> tuple[str, bytes] | None:
    for folder in _folders():
        data = _read(folder / f"{name}-{_key()}.o")
        symbol, _, code = (data or b"").partition(b"\n")
        if data is not None:
            return symbol.decode(), code
    return None


def _read(file: Path) -> bytes | None:
    """What was kept; None where it is torn, or another user could have put it there."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            data = opened.read()
    except OSError:
        return None
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    digest, kept = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return kept if hashlib.sha256(kept).digest() == digest else None


def _keep(name: str, symbol: str, code: bytes) -> tuple[str, bytes]:
    """Write to the first folder that takes it; where none does, the next process compiles anew."""
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / f"{name}-{_key()}.o", symbol, code)
            break
    return symbol, code


def _write(file: Path, symbol: str, code: bytes) -> None:
    data = symbol.encode() + b"\n" + code
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.write_bytes(hashlib.sha256(data).digest() + data)
    fresh.chmod(0o644)
    fresh.replace(file)
