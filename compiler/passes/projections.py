"""Linear layers that read one input become one layer: queries, keys and values in a single product.

    x @ Wqᵀ + bq,  x @ Wkᵀ + bk,  x @ Wvᵀ + bv   →   parts of  x @ cat(Wq, Wk, Wv)ᵀ + cat(bq, bk, bv)

The constant is a formula that copies bits. Each result becomes a part of a larger tensor, so none of them may be what
an output shows. Fewer than three layers are left alone.
"""

from typing import Any, Final

import torch
from torch import fx

from compiler import operators
from compiler.formula import Formula
from compiler.graph import Constant, Graph
from compiler.passes.aliases import exposed
from compiler.passes.layer import Layer, read_layer
from compiler.passes.report import PassReport, Reason
from compiler.passes.rewriting import RefusedError, erase_unread, rewrite_each
from compiler.specs import row_major

LEAST: Final = 3
_LINEAR: Final = "aten.linear.default"


def merge_projections(graph: Graph) -> tuple[Graph, PassReport]:
    """Merge every group of linear layers for which that is legal."""
    return rewrite_each("merge_projections", graph, _merge)


def _merge(node: fx.Node, graph: Graph) -> str | None:
    group = _group(node)
    if len(group) < LEAST or node is not group[0]:
        return None
    layers = [read_layer(member, graph) for member in group]
    if len({layer.bias is None for layer in layers}) > 1:
        raise RefusedError(Reason.SHAPE, "some have a bias and some have none")
    if len({(layer.weight.dtype, None if layer.bias is None else layer.bias.dtype) for layer in layers}) > 1:
        raise RefusedError(Reason.DTYPE_CHANGE, "their weights are of different dtypes")
    shown = set(exposed(graph.fx)).intersection(group)
    if shown:
        raise RefusedError(Reason.ALIAS, f"an output shows {', '.join(sorted(member.name for member in shown))}")
    merged = _merged(layers, node, graph)
    start = 0
    for layer in layers:
        stop = start + layer.out_channels
        part = graph.add_call(node, torch.ops.aten.slice.Tensor, (merged, merged.meta["val"].dim() - 1, start, stop))
        layer.node.replace_all_uses_with(part)
        start = stop
    erase_unread(graph, group)
    return f"{len(group)} layers became one of {start} outputs"


def _group(node: fx.Node) -> list[fx.Node]:
    """All linear layers that read what ``node`` reads, in order; nothing where it is none."""
    if operators.name_of(node.target) != _LINEAR:
        return []
    source: Any = node.args[0]
    readers = {user for user in source.users if operators.name_of(user.target) == _LINEAR and user.args[0] is source}
    return [each for each in node.graph.nodes if each in readers]


def _merged(layers: list[Layer], before: fx.Node, graph: Graph) -> fx.Node:
    weights = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    arguments: list[Any] = [before.args[0], _stacked(weights, f"{weights[0].name}.merged", graph)]
    if biases:
        arguments.append(_stacked(biases, f"{weights[0].name}.merged_bias", graph))
    return graph.add_call(before, torch.ops.aten.linear.default, tuple(arguments))


def _stacked(parts: list[Constant], name: str, graph: Graph) -> fx.Node:
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    formula = Formula.cat([part.formula for part in parts], 0)
    return graph.add_constant(
        Constant(name=name, dtype=parts[0].dtype, shape=shape, strides=row_major(shape), formula=formula)
    )
