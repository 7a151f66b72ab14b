"""What surrounds a model's own code when it is traced: Python, torch, and the state of the process.

``is_versioned`` says what a name is enough for, as versions go into every fingerprint. ``process`` gives the state
outside of a model that decides how torch traces, which function stands under which name in torch included. Functions
inside torch that are replaced elsewhere are not seen here; comparing a program with its model is for that.
"""

import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn

# What these do depends on their arguments and their version alone.
_VERSIONED: Final = frozenset(
    {"torch", "builtins", "math", "cmath", "operator", "_operator", "functools", "_functools", "itertools", "types"}
    | {"typing", "typing_extensions", "collections", "_collections", "_collections_abc", "abc", "_abc", "dataclasses"}
    | {"enum", "numbers", "contextlib", "copy", "inspect", "warnings", "_warnings", "string", "keyword"}
)
_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_PYTHON: Final = sysconfig.get_path("stdlib") + os.sep
DYNAMO: Final = os.path.join(_TORCH, "_dynamo") + os.sep


class UnfathomableError(Exception):
    """A value whose influence on a graph is not known; ``place`` leads to it."""

    def __init__(self, place: str, found: str) -> None:
        super().__init__(f"{place}: {found}")
        self.place = place
        self.found = found


def is_versioned(module: str | None) -> bool:
    """Whether what a module of this name holds is told by its name."""
    return module is not None and module.partition(".")[0] in _VERSIONED


def origin_of(file: str) -> str | None:
    """The root module that a file of torch or of Python itself belongs to; None for anything else."""
    if file.startswith(_TORCH):
        return "torch"
    if file.startswith("<frozen "):
        return file[len("<frozen ") : -1]
    if file.startswith(_PYTHON) and "-packages" not in file:
        return file[len(_PYTHON) :].partition(os.sep)[0].removesuffix(".py")
    return "typing_extensions" if os.path.basename(file) == "typing_extensions.py" else None


def process() -> Iterator[object]:
    """Versions, modes and defaults, and the functions in torch's namespaces, in words.

    Raises:
        UnfathomableError: Hooks or modes that every call goes through, or a function in torch that is not torch's.
    """
    for name, value in vars(nn.modules.module).items():
        if name.startswith("_global_") and "hooks" in name and value:
            raise UnfathomableError(f"torch.nn.modules.module.{name}", "hooks for every module")
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise UnfathomableError("torch", "a mode that every call goes through")
    yield from (sys.version, sys.flags, torch.__version__, torch.get_default_dtype(), torch.get_default_device())
    yield from (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )
    yield from (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    yield from (torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled())
    for space in (torch, nn.functional, Tensor):
        for name, value in sorted(vars(space).items()):
            if isinstance(value, types.FunctionType) and origin_of(value.__code__.co_filename) is None:
                raise UnfathomableError(f"{space.__name__}.{name}", "replaced by code that is not torch's")
            if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
                yield f"{name} {value.__module__}.{value.__qualname__}"
