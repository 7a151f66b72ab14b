"""Linear layers whose bias is added by what comes next.

A product with a bias fills its result with the bias before it multiplies: one more pass over the result. Where an
elementwise operator follows, Inductor adds the bias in that one's loop, if it is a sum of its own. Inductor joins the
two again for inputs of two dimensions.
"""

from typing import Final

import torch
from torch import Tensor

from compiler.definition import Definition, Ref

_ELEMENTWISE: Final = {
    f"aten.{name}" for name in ("add.Tensor", "gelu.default", "mul.Tensor", "relu.default", "silu.default")
}


def find(definition: Definition) -> list[int]:
    """Positions of linear layers with a bias whose readers are all elementwise."""
    readers: dict[int, set[str]] = {}
    for node in definition.nodes:
        for value in node.refs:
            readers.setdefault(value, set()).add(node.operator)
    for output in definition.outputs:
        readers.setdefault(output.value, set()).add("output")
    return [
        position
        for position, node in enumerate(definition.nodes)
        if node.operator == "aten.linear.default"
        and isinstance(dict(node.arguments).get("bias"), Ref)
        and readers.get(definition.first_node_value + position, {"nobody"}) <= _ELEMENTWISE
    ]


def linear(data: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """In place of ``aten.linear``: (…, I), (O, I) and (O,) to (…, O)."""
    return torch.nn.functional.linear(data, weight) + bias
