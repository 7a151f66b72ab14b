"""Layer norms take in the sum before them, or the activation after them, and become one of ``treering``'s operators.

    layer_norm(a + b)         →  add_layernorm(a, b); with the sum as a second result where somebody else reads it
    act(layer_norm(x))        →  layernorm_act(x, act)
    layer_norm(x)             →  layernorm_act(x, none), which reads and writes once, too

Refused: norms over more than the last axis, operands of other shapes or dtypes than the sum, dtypes without a kernel.
"""

import operator
from typing import Any, Final

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from compiler import kernels, operators
from compiler.graph import Graph
from compiler.passes.activations import activation_of
from compiler.passes.report import PassReport, Reason
from compiler.passes.rewriting import RefusedError, erase_unread, rewrite_each

_NORM: Final = "aten.layer_norm.default"
_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)


def fuse_layernorm(graph: Graph) -> tuple[Graph, PassReport]:
    """Replace every layer norm for which that is legal."""
    kernels.register()
    return rewrite_each("fuse_layernorm", graph, _fuse)


def _fuse(node: fx.Node, graph: Graph) -> str | None:
    if operators.name_of(node.target) != _NORM:
        return None
    x: Any = node.args[0]
    axes: Any = node.args[1]
    gain, bias, eps = (*node.args[2:], *(None, None, 1e-5)[len(node.args) - 2 :])[:3]
    if len(axes) != 1:
        raise RefusedError(Reason.SHAPE, f"it normalises over {len(axes)} axes")
    if x.meta["val"].dtype not in _DTYPES:
        raise RefusedError(Reason.UNSUPPORTED_DTYPE, f"its operand is {x.meta['val'].dtype}")
    if _is_sum(x):
        return _with_sum(node, x, (gain, bias, eps), graph)
    after = next(iter(node.users)) if len(node.users) == 1 else node
    activation = activation_of(after) or "none"
    last = node if activation == "none" else after
    fused = graph.add_call(last, torch.ops.treering.layernorm_act.default, (x, gain, bias, eps, activation))
    last.replace_all_uses_with(fused)
    erase_unread(graph, (last, node))
    return "a layer norm" if activation == "none" else f"a layer norm with its {activation}"


def _is_sum(x: fx.Node) -> bool:
    """Whether it is a sum of two tensors of its own shape and dtype."""
    if operators.name_of(x.target) != "aten.add.Tensor" or x.kwargs.get("alpha", 1) != 1:
        return False
    whole = x.meta["val"]
    return all(isinstance(each, fx.Node) and _is_like(each.meta["val"], whole) for each in x.args)


def _is_like(value: Any, whole: torch.Tensor) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != whole.dtype or value.dim() != whole.dim():
        return False
    return all(statically_known_true(a == b) for a, b in zip(value.shape, whole.shape, strict=True))


def _with_sum(node: fx.Node, total: fx.Node, vectors: tuple[Any, ...], graph: Graph) -> str:
    arguments = (*total.args, *vectors)
    if len(total.users) == 1:
        fused = graph.add_call(node, torch.ops.treering.add_layernorm.default, arguments)
        node.replace_all_uses_with(fused)
        erase_unread(graph, (node, total))
        return "a sum and its layer norm"
    both = graph.add_call(total, torch.ops.treering.add_layernorm.with_sum, arguments)
    parts = [graph.add_call(total, operator.getitem, (both, place)) for place in (0, 1)]
    node.replace_all_uses_with(parts[0])
    total.replace_all_uses_with(parts[1])
    erase_unread(graph, (node, total))
    return "a sum, which others read, too, and its layer norm"
