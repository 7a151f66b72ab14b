"""Which operators' memory the outputs may show: two of them must not become one tensor, nor a constant."""

from collections.abc import Iterator

import torch
from torch import fx


def exposed(graph: fx.Graph) -> Iterator[fx.Node]:
    """Outputs themselves, and what they are views of."""
    waiting = [argument for node in graph.nodes if node.op == "output" for argument in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        yield node
        if is_view(node):
            waiting += node.all_input_nodes


def is_view(node: fx.Node) -> bool:
    """Whether an operator's result may lie in the memory of an operand; so does one result of several."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.op == "call_function"
    return any(returned.alias_info is not None for returned in node.target._schema.returns)
