"""A program: a compiled graph without weights, its native packages, and the account of how it was made.

``digest`` names the graph, not the packages, whose bytes differ from build to build: two programs of one digest compute
the same function of their inputs and weights.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import Buffer

from compiler import constants, encode, rendering, storage
from compiler.backends import find_backend
from compiler.backends.target import Target
from compiler.constants import device_of
from compiler.definition import Definition
from compiler.errors import BackendRefusedError
from compiler.memory_plan import MemoryPlan, plan_memory
from compiler.report import Report
from compiler.runner import Runner
from compiler.specs import ConstantSpec, TensorSpec


@dataclass(frozen=True, kw_only=True)
class Program:
    """What ``compile`` returns and ``load`` reads. Valid once built by either.

    ``packages`` maps a target's path to its bytes; they are as their target says.
    """

    definition: Definition
    backend: str
    targets: tuple[Target, ...]
    packages: Mapping[str, bytes]
    report: Report

    @cached_property
    def digest(self) -> str:
        """``sha256:<hex>`` of the graph: inputs, formulas, literals, operators, outputs."""
        return encode.digest(self.definition)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a request brings, in call order."""
        return self.definition.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What an answer holds, in order."""
        return tuple(output.spec for output in self.definition.outputs)

    @property
    def constants(self) -> tuple[ConstantSpec, ...]:
        """What the caller keeps in memory: each with its layout and formula."""
        return self.definition.constants

    @property
    def requires(self) -> tuple[TensorSpec, ...]:
        """The checkpoint tensors that formulas read, by name."""
        return self.definition.requires

    @property
    def arena_bytes(self) -> int:
        """Bytes that one arena of all constants needs, alignment included."""
        return constants.arena_bytes(self.constants)

    def allocate(self, buffer: Buffer | None = None, *, device: torch.device | None = None) -> dict[str, Tensor]:
        """Memory for the constants: constant name → tensor, not yet filled.

        Args:
            buffer: Writable memory of at least ``arena_bytes`` that starts on a 64-byte boundary, for example
                ``SharedMemory.buf``; the tensors are views of it and must die before it is closed. None: own memory.
            device: Where own memory is, for a backend that runs there; None: the CPU.

        Raises:
            BufferMismatchError: The buffer does not do.
        """
        return constants.views(self.constants, buffer, device=device)

    def evaluate(
        self, tensors: Mapping[str, Tensor], out: Mapping[str, Tensor], *, changed: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """Write constants, in place, from a checkpoint's tensors.

        Args:
            tensors: Checkpoint tensors by name; only those in ``requires`` are read.
            out: As ``allocate`` gave it.
            changed: Names of checkpoint tensors; only formulas that read one of them are evaluated, so only their
                inputs have to be in ``tensors``. None evaluates everything, as a new arena needs.

        Returns:
            Names of the constants written. Evaluating A, then B, then A again restores A bit for bit.

        Raises:
            MissingTensorError, TensorMismatchError: Before anything is written.
        """
        return constants.fill(
            self.constants,
            out,
            tensors=tensors,
            requires=self.requires,
            literals=self.definition.literals,
            changed=changed,
        )

    def load_runner(self, constants: Mapping[str, Tensor], *, backend: str | None = None) -> Runner:
        """A runner that reads filled constants.

        Args:
            constants: As ``allocate`` gave and ``evaluate`` filled them.
            backend: ``"eager"`` works for every program; None means the one it was compiled for.

        Raises:
            BackendError: No such backend, or it refuses this machine, this program or the device of the constants.
            MissingTensorError, TensorMismatchError: A constant is not as stated.
        """
        name = backend or self.backend
        device = device_of(constants).type
        if device not in find_backend(name).devices:
            raise BackendRefusedError(
                backend=name,
                reason=f"constants are on {device}, expected {' or '.join(find_backend(name).devices)}",
                next_step="Allocate them there, or load the runner with backend='eager'.",
            )
        offered = [target for target in self.targets if target.backend == name]
        target = find_backend(name).choose(offered)
        package = self.packages[target.path] if target else b""
        return Runner(self.definition, find_backend(name).load(self.definition, target, package), constants)

    def bind(
        self, tensors: Mapping[str, Tensor], *, backend: str | None = None, device: torch.device | None = None
    ) -> Runner:
        """``allocate``, ``evaluate`` and ``load_runner`` in one: a runner with a checkpoint's weights."""
        memory = self.allocate(device=device)
        self.evaluate(tensors, memory)
        return self.load_runner(memory, backend=backend)

    def rebind(
        self, tensors: Mapping[str, Tensor], runner: Runner, *, changed: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """New weights for a runner, written into the memory that it reads; nothing is compiled or allocated.

        Args:
            tensors: As for ``evaluate``.
            runner: Of this program; no other thread may be running it meanwhile.
            changed: As for ``evaluate``; None evaluates every formula.

        Returns:
            Names of the constants written.

        Raises:
            MissingTensorError, TensorMismatchError: Before anything is written.
        """
        written = self.evaluate(tensors, runner.constants, changed=changed)
        runner.swap(runner.constants)
        return written

    def save(self, folder: str | Path) -> Path:
        """Write ``program.pb`` and the packages into a new folder, whole or not at all; returns its path.

        Raises:
            FileExistsError: Something is in ``folder``.
        """
        return storage.write(self.contents, folder)

    @property
    def contents(self) -> storage.Contents:
        """What its folder holds."""
        return storage.Contents(
            definition=self.definition,
            backend=self.backend,
            targets=self.targets,
            packages=self.packages,
            report=self.report,
        )

    def memory_plan(self, sizes: Mapping[str, int] | None = None) -> MemoryPlan:
        """Where each value of a run would lie in one arena, beside the least that any arena could be.

        Args:
            sizes: Dimension name → size; None means each at its largest.
        """
        largest = {dim.name: dim.max for dim in self.definition.dims}
        return plan_memory(self.definition, largest if sizes is None else sizes)

    def text(self) -> str:
        """The graph as stable text that diffs well."""
        return rendering.text(self.definition)

    def dot(self) -> str:
        """The graph in Graphviz's language."""
        return rendering.dot(self.definition)


def load(folder: str | Path) -> Program:
    """Read a program that ``Program.save`` wrote, and check all of it before anything runs.

    Raises:
        FileNotFoundError: There is no ``program.pb``.
        InvalidProgramError: A rule of the format is broken; ``path`` leads to the fault.
        CorruptPackageError: A package is missing, or is not the one that the program names.
    """
    return program_of(storage.read(folder))


def program_of(contents: storage.Contents) -> Program:
    """The program that a folder, or a cache, holds."""
    return Program(
        definition=contents.definition,
        backend=contents.backend,
        targets=contents.targets,
        packages=contents.packages,
        report=contents.report,
    )
