"""Run a definition operator by operator: the reference that every backend is measured against.

The arguments of each call are laid out once; a run only fills in values and drops each one after its last reader. The
same code runs on real tensors (the eager backend), on the meta device (validation: shapes without memory) and under
``torch.export`` (the AOTInductor backend), so there is one reading of a definition.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from compiler import dtypes, operators
from compiler.definition import Argument, Atom, Definition, DTypeName, MemoryFormatName, Node, Ref
from compiler.operators import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One node, ready to run: a function, its arguments with ``Ref`` where values go, and what dies after it."""

    function: Callable[..., Any]
    positional: tuple[Any, ...]
    keywords: dict[str, Any]
    last_read: tuple[int, ...]


class Interpreter:
    """A definition laid out for running. Holds no weights and no state between runs.

    Args:
        definition: Every operator of it in the table, every reference backwards.
        device: Where operators that take no tensor make theirs; the others follow their operands.
    """

    def __init__(self, definition: Definition, *, device: torch.device | None = None) -> None:
        self._outputs = tuple(output.value for output in definition.outputs)
        last_reader: dict[int, int] = {}
        for position, node in enumerate(definition.nodes):
            last_reader.update(dict.fromkeys(node.refs, position))
        dying: list[list[int]] = [[] for _ in definition.nodes]
        for value, position in last_reader.items():
            if value not in self._outputs:
                dying[position].append(value)
        self._calls = [_call(node, tuple(dead), device) for node, dead in zip(definition.nodes, dying, strict=True)]

    def run(self, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute the outputs. Inputs and constants come in the definition's order and are not written to."""
        values: list[Any] = [*inputs, *constants]
        for _ in self.steps(values):
            pass
        return tuple(values[value] for value in self._outputs)

    def replaced(self, calls: Mapping[int, tuple[Callable[..., Any], Mapping[str, Any]]]) -> "Interpreter":
        """One that calls other functions for some nodes (by position), with their arguments and some more by name."""
        other = copy.copy(self)
        other._calls = [
            replace(call, function=calls[node][0], keywords={**call.keywords, **calls[node][1]})
            if node in calls
            else call
            for node, call in enumerate(self._calls)
        ]
        return other

    def steps(self, values: list[Any]) -> Iterator[None]:
        """Run node after node: each turn appends one node's value to ``values`` and drops what nobody reads later."""
        for call in self._calls:
            values.append(
                call.function(
                    *(_fill(argument, values) for argument in call.positional),
                    **{name: _fill(argument, values) for name, argument in call.keywords.items()},
                )
            )
            for dead in call.last_read:
                values[dead] = None
            yield


def _call(node: Node, last_read: tuple[int, ...], device: torch.device | None) -> _Call:
    operator = operators.find(node.operator)
    assert operator is not None, "validation refuses unknown operators"
    positional, keywords = _split(operator, dict(node.arguments))
    if device is not None and _makes_tensors(operator):
        keywords["device"] = device
    return _Call(function=operator.function, positional=positional, keywords=keywords, last_read=last_read)


def _makes_tensors(operator: Operator) -> bool:
    kinds = {parameter.name: parameter.kind for parameter in operator.parameters}
    return "device" in kinds and not any("Tensor" in kind for kind in kinds.values())


def _split(operator: Operator, given: dict[str, Argument]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments up to the last one given, with defaults in the gaps; keyword-only ones by name."""
    places = [parameter for parameter in operator.parameters if not parameter.keyword_only]
    used = [index for index, parameter in enumerate(places) if parameter.name in given]
    positional = tuple(
        _settle(given[parameter.name]) if parameter.name in given else parameter.default
        for parameter in places[: max(used, default=-1) + 1]
    )
    keywords = {
        parameter.name: _settle(given[parameter.name])
        for parameter in operator.parameters
        if parameter.keyword_only and parameter.name in given
    }
    return positional, keywords


def _settle(argument: Argument) -> Any:
    """Replace names by torch's objects; references stay."""
    if isinstance(argument, tuple):
        return [_settle_atom(atom) for atom in argument]
    return _settle_atom(argument)


def _settle_atom(atom: Atom) -> Any:
    if isinstance(atom, DTypeName):
        return dtypes.BY_NAME[atom.name]
    if isinstance(atom, MemoryFormatName):
        return getattr(torch, atom.name)
    return atom


def _fill(argument: Any, values: list[Any]) -> Any:
    if isinstance(argument, Ref):
        return values[argument.value]
    if isinstance(argument, list):
        return [values[element.value] if isinstance(element, Ref) else element for element in argument]
    return argument
