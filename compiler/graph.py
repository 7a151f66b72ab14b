"""The graph that passes work on: torch's FX graph, and where each of its constants comes from.

The FX graph is functional (nothing is written in place; capture refuses what would be) and holds a placeholder per
constant and per input. ``inputs`` and ``constants`` are keyed by a placeholder's *target*: copying a graph may rename
nodes, never targets. A pass never changes the graph it is given: it works on ``copy()`` and returns that.
"""

from dataclasses import dataclass

import torch
from torch import fx

from compiler.definition import Literal
from compiler.formula import Formula
from compiler.specs import Dim, TensorSpec


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


def site(node: fx.Node) -> str:
    """Where a node comes from, for people: the module's path in the model, or the node's own name."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return node.name
    path = list(stack.values())[-1][0]
    return path or node.name
