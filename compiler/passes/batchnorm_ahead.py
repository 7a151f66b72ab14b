"""Fold batch normalisation into the convolution or linear layer that reads it.

    y = conv(x · s + t, W) + b   →   conv(x, W·s) + b + Σ W·t,   the sum over input channels and the kernel

Beside what folding backwards asks for: no zeros around the layer's input, since zeros are not normalised ones; no
transposed convolution, whose results at the border miss some taps; and no 16-bit floats, where W·s would be rounded to
what x · s + t was rounded to only after a difference of large numbers.
"""

from typing import Final

import torch
from torch import fx

from compiler.formula import Formula
from compiler.graph import Graph, site
from compiler.passes.layer import Layer, is_layer, read_layer, refuse_write, replace_layer
from compiler.passes.norm import Norm, is_norm, read_norm
from compiler.passes.report import PassReport, Reason
from compiler.passes.rewriting import RefusedError, erase_unread, rewrite_each

WIDE: Final = (torch.float32, torch.float64)


def fold_batchnorm_ahead(graph: Graph) -> tuple[Graph, PassReport]:
    """Fold every batch norm for which that is legal into the layer after it."""
    return rewrite_each("fold_batchnorm_ahead", graph, _fold)


def _fold(node: fx.Node, graph: Graph) -> str | None:
    if not is_norm(node):
        return None
    norm = read_norm(node, graph)
    layer = read_layer(_consumer(norm), graph)
    if layer.transposed:
        raise RefusedError(Reason.TRANSPOSED, f"{layer.node.name} misses taps at its borders")
    if layer.pads:
        raise RefusedError(Reason.PADDING, f"{layer.node.name} pads with zeros that were never normalised")
    if layer.weight.dtype not in WIDE:
        raise RefusedError(Reason.UNSUPPORTED_DTYPE, f"a {layer.weight.dtype} weight would be rounded after scaling")
    weight, bias = layer.scaled_inputs(norm.scale), _bias(layer, norm)
    replace_layer(layer, graph, source=norm.source, weight=weight, bias=bias, result=layer.node)
    erase_unread(graph, [norm.node, norm.result, layer.node])
    return f"folded into {site(layer.node)}"


def _consumer(norm: Norm) -> fx.Node:
    readers = list(norm.result.users)
    if len(readers) != 1:
        raise RefusedError(Reason.OTHER_USE, f"{norm.result.name} is read by {len(readers)} operators")
    (reader,) = readers
    if not is_layer(reader) or reader.args[0] is not norm.result:
        refuse_write(reader, lambda written: next(iter(written.users), None))
        raise RefusedError(Reason.UNSUPPORTED_CONSUMER, f"{reader.name} reads it")
    if norm.source.meta["val"].dim() != reader.args[1].meta["val"].dim():  # type: ignore[union-attr]
        raise RefusedError(Reason.CHANNEL_AXIS, f"{reader.name} has its channels on another axis")
    return reader


def _bias(layer: Layer, norm: Norm) -> Formula:
    """One number for each output channel: what the shift becomes under the weight."""
    summed = tuple(range(1, len(layer.weight.shape)))
    moved = layer.scaled_inputs(norm.shift).sum(summed)
    return moved if layer.bias is None else moved + layer.bias.formula
