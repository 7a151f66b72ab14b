"""The eager backend: the folded graph, operator by operator, in PyTorch. Runs everywhere and needs no package."""

from collections.abc import Sequence

from torch import Tensor

from compiler.backends.arena import ArenaInterpreter
from compiler.backends.target import Target
from compiler.definition import Definition
from compiler.runner import Engine


class _EagerEngine:
    def __init__(self, definition: Definition) -> None:
        self._interpreter = ArenaInterpreter(definition)
        self._constants: Sequence[Tensor] = ()

    def prepare(self, constants: Sequence[Tensor]) -> Sequence[Tensor]:
        return constants

    def bind(self, prepared: Sequence[Tensor]) -> None:
        self._constants = prepared

    def run(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return self._interpreter.run(inputs, self._constants)


class EagerBackend:
    """Refuses nothing and builds nothing."""

    requirement = ""
    suffix = ""

    def resolve(self, asked: str) -> str:
        """It runs everywhere."""
        return asked

    def choose(self, targets: Sequence[Target]) -> Target | None:
        """It needs none."""
        return None

    def refuse(self, definition: Definition, *, requirement: str) -> None:
        """Every valid definition can be interpreted."""

    def build_key(self, *, requirement: str) -> str:
        """Nothing is built."""
        return ""

    def build(self, definition: Definition, *, requirement: str) -> bytes | None:
        """The definition is enough."""
        return None

    def load(self, definition: Definition, target: Target | None, package: bytes) -> Engine:
        """An interpreter of the definition."""
        return _EagerEngine(definition)


BACKEND = EagerBackend()
