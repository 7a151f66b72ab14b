"""Backends: what turns a definition into something that runs.

A backend is a module with a ``BACKEND`` object of the ``Backend`` protocol, named in a literal table and imported when
it is first asked for. ``eager`` interprets the definition; ``aoti`` compiles it to native code whose constants stay
outside; ``onnx`` writes a graph for ONNX Runtime. A backend states what it refuses, and why, before any work is done.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol, cast

from compiler.backends.target import Target
from compiler.definition import Definition
from compiler.errors import UnknownBackendError
from compiler.runner import Engine

__all__ = ["BACKENDS", "Backend", "Target", "find_backend"]

BACKENDS: Final[dict[str, str]] = {
    "eager": "compiler.backends.eager:BACKEND",
    "aoti": "compiler.backends.aoti:BACKEND",
    "onnx": "compiler.backends.onnx:BACKEND",
}


class Backend(Protocol):
    """One way to run definitions.

    ``requirement`` is what its packages need unless asked otherwise; ``devices`` are the types of device that constants
    may be on.
    """

    requirement: str
    suffix: str
    devices: tuple[str, ...]

    def resolve(self, asked: str) -> str:
        """The requirement that is meant on this machine, spelled out."""
        ...

    def choose(self, targets: Sequence[Target]) -> Target | None:
        """Of its targets the one to load on this machine."""
        ...

    def refuse(self, definition: Definition, *, requirement: str) -> None:
        """Raise ``BackendRefusedError`` when this machine cannot build the definition for the requirement."""
        ...

    def arrange(self, definition: Definition) -> Definition:
        """The same with the layout of constants from which this backend prepares them soonest."""
        ...

    def build_key(self, *, requirement: str) -> str:
        """Everything beside the definition that decides what ``build`` makes: flags and versions."""
        ...

    def build(self, definition: Definition, *, requirement: str) -> bytes | None:
        """The package to ship, or None when the definition is enough."""
        ...

    def load(self, definition: Definition, target: Target | None, package: bytes) -> Engine:
        """An engine for this machine, from a package whose SHA-256 was checked."""
        ...


def find_backend(name: str) -> Backend:
    """The backend of this name.

    Raises:
        UnknownBackendError: The table does not have it; the message lists those it has.
    """
    if name not in BACKENDS:
        raise UnknownBackendError(name=name, known=tuple(BACKENDS))
    module, _, attribute = BACKENDS[name].partition(":")
    return cast(Backend, getattr(import_module(module), attribute))
