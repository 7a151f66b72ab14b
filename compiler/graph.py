"""The graph that passes work on: torch's FX graph, and where each of its constants comes from.

The FX graph is functional (nothing is written in place; capture refuses what would be) and holds a placeholder per
constant and per input. ``inputs`` and ``constants`` are keyed by a placeholder's *target*: copying a graph may rename
nodes, never targets. A pass never changes the graph it is given: it works on ``copy()`` and returns that.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import Node

from compiler.definition import Literal
from compiler.formula import Formula
from compiler.literals import literal_of
from compiler.specs import Dim, TensorSpec, row_major


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A tensor the graph reads that is no input of a request."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    formula: Formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A captured model between two passes.

    ``inputs`` maps an input placeholder's target to its specification, in call order; ``tensors`` holds dtype and shape
    of every checkpoint tensor that formulas may read; ``output_names`` are in the order of the output node.
    """

    model: str
    fx: fx.Graph
    dims: tuple[Dim, ...]
    inputs: dict[str, TensorSpec]
    constants: dict[str, Constant]
    literals: dict[str, Literal]
    tensors: dict[str, TensorSpec]
    output_names: tuple[str, ...]

    def copy(self) -> "Graph":
        """The same graph with nodes and constants of its own."""
        graph = fx.Graph()
        result = graph.graph_copy(self.fx, val_map={})
        if result is None:
            raise AssertionError("a captured graph has an output")
        graph.output(result)
        return Graph(
            model=self.model,
            fx=graph,
            dims=self.dims,
            inputs=dict(self.inputs),
            constants=dict(self.constants),
            literals=dict(self.literals),
            tensors=dict(self.tensors),
            output_names=self.output_names,
        )

    def constant_of(self, value: Any) -> Constant | None:
        """The constant that an argument of an operator is, None where it is none."""
        if not isinstance(value, Node) or value.op != "placeholder":
            return None
        return self.constants.get(str(value.target))

    def add_constant(self, constant: Constant) -> Node:
        """A placeholder of a constant: that of an equal one if there is one; a name that is taken gets a number."""
        for other in self.fx.nodes:
            known = self.constant_of(other)
            if known is not None and replace(known, name=constant.name) == constant:
                equal: Node = other
                return equal
        taken = {known.name for known in self.constants.values()} | self.constants.keys() | self.inputs.keys()
        name = _free_name(constant.name, taken)
        example = next(value for node in self.fx.nodes if isinstance(value := node.meta.get("val"), Tensor))
        with self.fx.inserting_before(next(node for node in self.fx.nodes if node.op != "placeholder")):
            node = self.fx.placeholder(name)
        node.meta["val"] = example.new_empty_strided(constant.shape, constant.strides, dtype=constant.dtype)
        self.constants[name] = replace(constant, name=name)
        return node

    def add_literal(self, name: str, tensor: Tensor) -> Node:
        """A placeholder of a literal: that of an equal one if there is one; a name that is taken gets a number."""
        literal = literal_of(name, tensor)
        known = next((each for each in self.literals.values() if replace(each, name=name) == literal), None)
        if known is None:
            known = replace(literal, name=_free_name(name, self.literals))
            self.literals[known.name] = known
        shape = tuple(tensor.shape)
        return self.add_constant(
            Constant(
                name=f"literal[{known.name}]",
                dtype=tensor.dtype,
                shape=shape,
                strides=row_major(shape),
                formula=Formula.literal(known.name),
            )
        )

    def add_call(
        self,
        before: Node,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any] | None = None,
    ) -> Node:
        """A new operator before another one and of the same module; its shape is found by running it on shapes."""
        with self.fx.inserting_before(before):
            node = self.fx.call_function(function, arguments, dict(keywords or {}))
        positional, named = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
        with torch.no_grad(), enable_python_dispatcher():
            node.meta = {**before.meta, "val": function(*positional, **named)}
        return node


def _free_name(name: str, taken: Container[str]) -> str:
    """``name``, or with the first number that makes it one of its own."""
    names = (name if number == 0 else f"{name}.{number}" for number in count())
    return next(each for each in names if each not in taken)


def site(node: Node) -> str:
    """Where a node comes from, for people: the module's path in the model, or the node's own name."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return node.name
    path = list(stack.values())[-1][0]
    return path or node.name


def writes_in_place(node: Node) -> bool:
    """Whether the model's own operator wrote to its operand (``add_``), which capture made functional (``add``)."""
    targets = (str(source.target).split(".") for source in node.meta.get("from_node", ()))
    return any(len(parts) == 3 and parts[1].endswith("_") for parts in targets)
