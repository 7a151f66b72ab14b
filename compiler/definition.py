"""The definition of a program: its graph as plain values, in canonical order, with no weights.

This is what is digested, stored, validated and handed to backends. Values are numbered in one line: inputs first,
then constants, then one per node; an argument refers to a value by its number and only backwards. Arguments stand
under the names of the operator's schema, in its order, with those at their default left out, so that one graph has
one definition.

``Definition`` promises nothing about itself: ``compiler.validation`` does. It leaves bytes to
``compiler.encode`` and ``compiler.decode``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.specs import ConstantSpec, Dim, TensorSpec


@dataclass(frozen=True, slots=True)
class Ref:
    """The number of a value."""

    value: int


@dataclass(frozen=True, slots=True)
class DTypeName:
    """An element type as an argument: a name of ``compiler.dtypes``."""

    name: str


@dataclass(frozen=True, slots=True)
class MemoryFormatName:
    """A memory format as an argument: a key of ``MEMORY_FORMATS``."""

    name: str


Atom = Ref | DTypeName | MemoryFormatName | None | bool | int | float | str
Argument = Atom | tuple[Atom, ...]

MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator call and what a scheduler needs to know about it; the words are those of ``program.proto``.

    ``memory_layout`` "none" means that the value is no tensor; ``phase`` says whether it is computed from constants
    alone or from what a request brings; ``sync_mode`` whether it is done before the next operator starts, or ordered by
    its device's stream only.
    """

    operator: str
    arguments: tuple[tuple[str, Argument], ...]
    device_set: tuple[str, ...]
    memory_layout: str
    phase: str
    sync_mode: str

    @property
    def refs(self) -> tuple[int, ...]:
        """Numbers of the values this node reads, in argument order."""
        return tuple(atom.value for _, argument in self.arguments for atom in atoms(argument) if isinstance(atom, Ref))


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A tensor that is in no checkpoint: its elements in row-major order, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A value that the program returns."""

    value: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The whole graph. ``requires`` lists the checkpoint tensors that formulas read, sorted by name."""

    dims: tuple[Dim, ...]
    inputs: tuple[TensorSpec, ...]
    requires: tuple[TensorSpec, ...]
    literals: tuple[Literal, ...]
    constants: tuple[ConstantSpec, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]

    @property
    def first_node_value(self) -> int:
        """The number of the first node's value."""
        return len(self.inputs) + len(self.constants)

    def value_name(self, value: int) -> str:
        """How text calls a value: an input's or constant's name, or ``%k`` for node k."""
        if value < len(self.inputs):
            return self.inputs[value].name
        if value < self.first_node_value:
            return self.constants[value - len(self.inputs)].name
        return f"%{value - self.first_node_value}"


def atoms(argument: Argument) -> Iterator[Atom]:
    """The atoms of an argument: itself, or its elements."""
    if isinstance(argument, tuple):
        yield from argument
    else:
        yield argument
