"""Fold batch normalisation into the convolution or linear layer that feeds it.

    y = (conv(x, W) + b − mean) · s + beta,  s = gamma / √(var + eps)   →   conv(x, W·s) + (b − mean)·s + beta

The folded weight and bias become formulas over the checkpoint's tensors; no number is computed here. Each batch norm is
either folded or refused with a reason. Checked: the model writes nothing in place between the two operators (the graph
is functional, so such a write stands there as an operator), the intermediate has one reader, the weight serves nobody
else, every part is a stored constant, the statistics are those of evaluation mode, and the normalised axis is the
layer's output channel.
"""

from torch import fx

from compiler.formula import Formula
from compiler.graph import Graph, site
from compiler.passes.layer import Layer, is_layer, read_layer, refuse_write, replace_layer
from compiler.passes.norm import Norm, is_norm, read_norm
from compiler.passes.report import PassReport, Reason
from compiler.passes.rewriting import RefusedError, erase_unread, rewrite_each


def fold_batchnorm(graph: Graph) -> tuple[Graph, PassReport]:
    """Fold every batch norm for which that is legal into the layer before it."""
    return rewrite_each("fold_batchnorm", graph, _fold)


def _fold(node: fx.Node, graph: Graph) -> str | None:
    if not is_norm(node):
        return None
    norm = read_norm(node, graph)
    _check_producer(norm.source)
    layer = read_layer(norm.source, graph)
    weight, bias = layer.scaled_outputs(norm.scale), _bias(layer, norm)
    replace_layer(layer, graph, source=layer.node.args[0], weight=weight, bias=bias, result=norm.result)
    erase_unread(graph, [layer.node, norm.node, norm.result])
    return f"folded into {site(layer.node)}"


def _check_producer(node: fx.Node) -> None:
    if not is_layer(node):
        refuse_write(node, lambda written: written.args[0])
        raise RefusedError(Reason.UNSUPPORTED_PRODUCER, f"it follows {node.name}")
    if len(node.users) != 1:
        raise RefusedError(Reason.OTHER_USE, f"{node.name} is read by {len(node.users)} operators")
    if node.meta["val"].dim() != node.args[1].meta["val"].dim():  # type: ignore[union-attr]
        raise RefusedError(Reason.CHANNEL_AXIS, f"{node.name} has no batch axis, or axes between batch and channel")


def _bias(layer: Layer, norm: Norm) -> Formula:
    if layer.bias is None:
        return norm.shift
    moved = (layer.bias.formula - norm.mean) * norm.scale
    return moved if norm.beta is None else moved + norm.beta
