"""Linear layers take in the activation that follows them: ``act(x @ Wᵀ + b)`` becomes ``treering.linear_act``.

Refused: a product that somebody else reads, and float32, whose products the library multiplies faster than any kernel
of ours, by more than an activation takes.
"""

from typing import Any, Final

import torch
from torch import fx

from compiler import kernels, operators
from compiler.graph import Graph
from compiler.passes.activations import activation_of
from compiler.passes.report import PassReport, Reason
from compiler.passes.rewriting import RefusedError, erase_unread, rewrite_each

_DTYPES: Final = (torch.float16, torch.bfloat16)


def fuse_linear_act(graph: Graph) -> tuple[Graph, PassReport]:
    """Merge every linear layer with its activation where that is legal."""
    kernels.register()
    return rewrite_each("fuse_linear_act", graph, _fuse)


def _fuse(node: fx.Node, graph: Graph) -> str | None:
    activation = activation_of(node)
    layer: Any = node.args[0] if activation else None
    if activation is None or operators.name_of(layer.target) != "aten.linear.default":
        return None
    if len(layer.users) != 1:
        raise RefusedError(Reason.OTHER_USE, f"{layer.name} is read by {len(layer.users)} operators")
    dtype = layer.meta["val"].dtype
    if dtype not in _DTYPES:
        raise RefusedError(Reason.UNSUPPORTED_DTYPE, f"its operands are {dtype}")
    x, weight, bias = (*layer.args, None)[:3]
    fused = graph.add_call(node, torch.ops.treering.linear_act.default, (x, weight, bias, activation))
    node.replace_all_uses_with(fused)
    erase_unread(graph, (node, layer))
    return f"a linear layer with its {activation}"
