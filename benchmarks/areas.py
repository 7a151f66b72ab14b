"""The areas: a literal table, each imported when it is asked for."""

from collections.abc import Callable
from importlib import import_module
from typing import Final, cast

from benchmarks.errors import UnknownAreaError
from benchmarks.plan import Stage

Area = Callable[[bool], tuple[Stage, ...]]  # is it quick? → stages

AREAS: Final[dict[str, str]] = {
    "ckpt": "benchmarks.checkpoints:stages",
    "compiler": "benchmarks.compiling:stages",
    "delta": "benchmarks.deltas:stages",
    "kernels": "benchmarks.kernels:stages",
    "live": "benchmarks.live:stages",
    "pipeline": "benchmarks.pipeline:stages",
}


def find_area(name: str) -> Area:
    """The function that gives an area's stages.

    Raises:
        UnknownAreaError: The table does not have it; the message lists those it has.
    """
    if name not in AREAS:
        raise UnknownAreaError(name, known=AREAS)
    module, _, attribute = AREAS[name].partition(":")
    return cast(Area, getattr(import_module(module), attribute))
