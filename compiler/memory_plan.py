"""A memory plan: where each value of a run lies in one arena, and the least that any arena could be.

A value lives from the operator that makes it to the last one that reads it or a view of it; views have no memory of
their own. Values are placed from the largest to the smallest, each at the lowest offset that is free throughout its
life. The *lower bound* is the most that is alive at one time: no arrangement does with less, so the ratio tells how
good the plan is.

Inputs and constants are the caller's, and so is what reaches an output: neither is planned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from compiler import dtypes
from compiler.definition import Definition
from compiler.interpreter import Interpreter

ALIGNMENT_BYTES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """A storage that a node makes: ``size_bytes`` padded to the alignment; nodes ``first`` to ``last`` need it."""

    first: int
    last: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Offsets of lifetimes in one arena.

    Attributes:
        sizes: The dimensions' sizes that it holds for.
        lifetimes: In the order of the nodes that make them.
        offsets: Where each starts, in bytes from the arena's start.
        arena_bytes: The end of the last one.
        lower_bound_bytes: The most that is alive at one time.
    """

    sizes: Mapping[str, int]
    lifetimes: tuple[Lifetime, ...]
    offsets: tuple[int, ...]
    arena_bytes: int
    lower_bound_bytes: int

    @property
    def total_bytes(self) -> int:
        """What all values would take if none took over another's place."""
        return sum(lifetime.size_bytes for lifetime in self.lifetimes)


def plan_memory(definition: Definition, sizes: Mapping[str, int]) -> MemoryPlan:
    """Plan a run at some sizes of the dimensions (name → size)."""
    lifetimes = tuple(_lifetimes(definition, sizes))
    offsets = place(lifetimes)
    return MemoryPlan(
        sizes=dict(sizes),
        lifetimes=lifetimes,
        offsets=offsets,
        arena_bytes=max((offset + at.size_bytes for offset, at in zip(offsets, lifetimes, strict=True)), default=0),
        lower_bound_bytes=lower_bound(lifetimes),
    )


def place(lifetimes: Sequence[Lifetime]) -> tuple[int, ...]:
    """An offset for each lifetime, so that no two that meet in time overlap."""
    order = sorted(range(len(lifetimes)), key=lambda index: (-lifetimes[index].size_bytes, index))
    offsets: dict[int, int] = {}
    for index in order:
        one = lifetimes[index]
        taken = sorted(
            (offsets[other], offsets[other] + lifetimes[other].size_bytes)
            for other in offsets
            if lifetimes[other].first <= one.last and one.first <= lifetimes[other].last
        )
        start = 0
        for low, high in taken:
            if low - start >= one.size_bytes:
                break
            start = max(start, high)
        offsets[index] = start
    return tuple(offsets[index] for index in range(len(lifetimes)))


def padded(size_bytes: int) -> int:
    """What a storage takes in an arena."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """The most bytes that are alive while one node runs; the maximum is taken where a lifetime begins."""
    return max(
        (sum(other.size_bytes for other in lifetimes if other.first <= one.first <= other.last) for one in lifetimes),
        default=0,
    )


def _lifetimes(definition: Definition, sizes: Mapping[str, int]) -> Iterable[Lifetime]:
    made, last_read, kept = _storages(definition, sizes)
    for storage, (node, size_bytes) in made.items():
        if storage not in kept and size_bytes:
            last = max(last_read.get(storage, node), node)
            yield Lifetime(first=node, last=last, size_bytes=padded(size_bytes))


def _storages(
    definition: Definition, sizes: Mapping[str, int]
) -> tuple[dict[int, tuple[int, int]], dict[int, int], set[int]]:
    """Storage → (the node that makes it, its bytes); storage → its last reader; the storages that outputs keep."""
    with torch.device("meta"), torch.no_grad():
        values: list[Any] = [
            torch.empty(spec.at(sizes), dtype=dtypes.BY_NAME[spec.dtype]) for spec in definition.inputs
        ]
        values += [
            torch.empty_strided(entry.shape, entry.strides, dtype=dtypes.BY_NAME[entry.dtype])
            for entry in definition.constants
        ]
        everything = list(values)  # kept alive: a storage that dies may give its identity to the next
        everything.extend(values[-1] for _ in Interpreter(definition).steps(values))
    owned = {storage for value in everything[: definition.first_node_value] for storage in _ids(value)}
    made: dict[int, tuple[int, int]] = {}
    last_read: dict[int, int] = {}
    for index, node in enumerate(definition.nodes):
        for tensor in _tensors(everything[definition.first_node_value + index]):
            storage = tensor.untyped_storage()
            if storage._cdata not in owned:
                made.setdefault(storage._cdata, (index, storage.nbytes()))
        last_read.update((storage, index) for ref in node.refs for storage in _ids(everything[ref]))
    return made, last_read, {storage for output in definition.outputs for storage in _ids(everything[output.value])}


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [item for item in value if isinstance(item, Tensor)] if isinstance(value, list | tuple) else []


def _ids(value: Any) -> list[int]:
    return [tensor.untyped_storage()._cdata for tensor in _tensors(value)]
