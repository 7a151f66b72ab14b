"""Weight memory: arenas, and the slots that bind a program to one.

An *arena* is a run of memory that holds every constant of a program; a *slot* is a program, an arena filled from one
checkpoint, and a runner. A model has two slots, the live and the previous one, so an update is built beside what serves
and an undo needs neither network nor folder. Arenas are anonymous memory maps: they have no name that could outlive the
process, and go with their last reader.

Promises: a slot is returned complete or not at all, and building one never writes to the arena that serves. Which slot
is live is decided by ``engine``; what may become a slot by ``updater``.
"""

import hashlib
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from serving.codec import datatype_of
from serving.errors import ReleaseRefusedError
from serving.protocol import ModelInfo, TensorInfo


class Spec(Protocol):
    """A tensor that a program takes, gives or reads; None in the shape is a dynamic dimension."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> object: ...
    @property
    def shape(self) -> tuple[int | None, ...]: ...


class Runner(Protocol):
    """A loaded program; ``swap`` points it at another arena's constants, which ``prepare`` made ready beforehand."""

    @property
    def bound(self) -> Any: ...
    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]: ...
    def prepare(self, constants: Mapping[str, Tensor]) -> Any: ...
    def swap(self, constants: Any) -> None: ...


class Program(Protocol):
    """The part of ``compiler.Program`` that serving uses."""

    @property
    def digest(self) -> str: ...
    @property
    def inputs(self) -> Sequence[Spec]: ...
    @property
    def outputs(self) -> Sequence[Spec]: ...
    @property
    def requires(self) -> Sequence[Spec]: ...
    @property
    def arena_bytes(self) -> int: ...
    def allocate(self, buffer: mmap.mmap) -> dict[str, Tensor]: ...
    def evaluate(
        self, tensors: Mapping[str, Tensor], out: Mapping[str, Tensor], *, changed: set[str] | None
    ) -> tuple[str, ...]: ...
    def load_runner(self, constants: Mapping[str, Tensor]) -> Runner: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A verified checkpoint with its program, open for reading; ``tensors`` holds what the program requires."""

    folder: Path
    root: str
    program: Program
    tensors: Mapping[str, Tensor]


class Arena:
    """Memory for a program's constants, zero at first."""

    def __init__(self, size_bytes: int) -> None:
        self.buffer = mmap.mmap(-1, max(size_bytes, 1))

    def copy_from(self, other: "Arena") -> None:
        """Copy all of ``other``, which has the same size; torch copies without holding the interpreter lock."""
        torch.frombuffer(self.buffer, dtype=torch.uint8).copy_(torch.frombuffer(other.buffer, dtype=torch.uint8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A program bound to one checkpoint's constants.

    Attributes:
        prepared: The constants as the runner takes them in no time.
        fingerprints: SHA-256 of each required tensor's bytes, by name: what a later update is compared with.
    """

    root: str
    version: str
    program: Program
    arena: Arena
    constants: Mapping[str, Tensor]
    runner: Runner
    prepared: Any
    fingerprints: Mapping[str, bytes]


def build(release: Release, *, version: str) -> Slot:
    """Bind a release's program to a new arena and evaluate every formula."""
    check_required(release)
    arena = Arena(release.program.arena_bytes)
    constants = release.program.allocate(arena.buffer)
    release.program.evaluate(release.tensors, constants, changed=None)
    runner = release.program.load_runner(constants)
    return Slot(
        root=release.root,
        version=version,
        program=release.program,
        arena=arena,
        constants=constants,
        runner=runner,
        prepared=runner.bound,
        fingerprints={name: fingerprint(tensor) for name, tensor in release.tensors.items()},
    )


def rebuild(release: Release, *, version: str, live: Slot, arena: Arena | None) -> Slot:
    """Make the slot of another checkpoint of the live program: copy the live constants, evaluate what changed.

    Args:
        release: A release whose program has the live slot's digest.
        version: Its number in the registry.
        live: The slot that serves; read only.
        arena: An arena that nothing reads any more, to be overwritten; None for a new one.

    Returns:
        The slot, sharing the live slot's runner: the flip points it at the new constants.
    """
    check_required(release)
    fingerprints = {name: fingerprint(tensor) for name, tensor in release.tensors.items()}
    changed = {name for name, value in fingerprints.items() if live.fingerprints.get(name) != value}
    arena = Arena(live.program.arena_bytes) if arena is None else arena
    arena.copy_from(live.arena)
    constants = live.program.allocate(arena.buffer)
    live.program.evaluate(release.tensors, constants, changed=changed)
    return Slot(
        root=release.root,
        version=version,
        program=live.program,
        arena=arena,
        constants=constants,
        runner=live.runner,
        prepared=live.runner.prepare(constants),
        fingerprints=fingerprints,
    )


def fingerprint(tensor: Tensor) -> bytes:
    """SHA-256 of a tensor's elements in row-major order; dtype and shape are fixed by the program."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).digest()


def check_required(release: Release) -> None:
    """Refuse a release that lacks a tensor the program reads, or holds it with another dtype or shape.

    Raises:
        ReleaseRefusedError: The first such tensor.
    """
    for spec in release.program.requires:
        tensor = release.tensors.get(spec.name)
        wanted = f"{str(spec.dtype).removeprefix('torch.')} {list(spec.shape)}"
        found = "nothing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        if found != wanted:
            raise ReleaseRefusedError(
                f"tensor '{spec.name}' of '{release.folder}'",
                found=found,
                expected=f"{wanted}, which program {release.program.digest} reads",
                next_step="Release the model again, so that checkpoint and program come from one build.",
            )


def describe(program: Program, *, name: str, max_rows: int) -> ModelInfo:
    """Say what requests a program takes; dimension 0 of each input and output must be the dynamic count of rows.

    Raises:
        ReleaseRefusedError: A tensor cannot be batched by rows or has no datatype in the protocol.
    """
    return ModelInfo(
        name=name,
        inputs=tuple(_describe_tensor(spec, program=program) for spec in program.inputs),
        outputs=tuple(_describe_tensor(spec, program=program) for spec in program.outputs),
        max_rows=max_rows,
    )


def _describe_tensor(spec: Spec, *, program: Program) -> TensorInfo:
    datatype = datatype_of(spec.dtype)
    row_shape = tuple(size for size in spec.shape[1:] if size is not None)
    by_rows = len(spec.shape) > 0 and spec.shape[0] is None and len(row_shape) == len(spec.shape) - 1
    if datatype is None or not by_rows:
        raise ReleaseRefusedError(
            f"tensor '{spec.name}' of program {program.digest}",
            found=f"{spec.dtype} {list(spec.shape)}",
            expected="a dtype of the Open Inference Protocol, a dynamic first dimension (rows) and no other",
            next_step="Compile it with dynamic={0: ...} alone.",
        )
    return TensorInfo(name=spec.name, datatype=datatype, row_shape=row_shape)
