"""The eager backend: the folded graph, operator by operator, in PyTorch. Runs everywhere and needs no package.

On a CPU values lie in one arena; on a GPU the operators are captured in graphs. Which of them it is, is told by the
memory that constants are bound in.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from compiler.backends.arena import ArenaInterpreter
from compiler.backends.captured import CapturedRuns
from compiler.backends.target import Target
from compiler.definition import Definition
from compiler.runner import Engine


class _EagerEngine:
    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._interpreter = ArenaInterpreter(definition)
        self._constants: Sequence[Tensor] = ()
        self._captured: CapturedRuns | None = None

    def prepare(self, constants: Sequence[Tensor]) -> Sequence[Tensor]:
        return constants

    def bind(self, prepared: Sequence[Tensor]) -> None:
        self._constants = prepared
        device = prepared[0].device if prepared else torch.device("cpu")
        if device.type != "cuda":
            self._captured = None
            return
        if self._captured is None or self._captured.device != device:
            self._captured = CapturedRuns(self._definition, device)
        self._captured.bind(prepared)

    def run(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        if self._captured is not None:
            return self._captured.run(inputs)
        return self._interpreter.run(inputs, self._constants)


class EagerBackend:
    """Refuses nothing and builds nothing."""

    requirement = ""
    suffix = ""
    devices = ("cpu", "cuda")

    def resolve(self, asked: str) -> str:
        """It runs everywhere."""
        return asked

    def choose(self, targets: Sequence[Target]) -> Target | None:
        """It needs none."""
        return None

    def refuse(self, definition: Definition, *, requirement: str) -> None:
        """Every valid definition can be interpreted."""

    def arrange(self, definition: Definition) -> Definition:
        """As it is."""
        return definition

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
