"""A batch norm that no layer takes becomes one multiply-add with two constants: y = x · scale + shift.

That is the arithmetic of the norm's own kernel, less the square root and the division for each call. In 16-bit floats
the norm computes in float32 inside and rounds once; there it stays.
"""

import torch
from torch import fx

from compiler.formula import Formula
from compiler.graph import Constant, Graph
from compiler.passes.batchnorm_ahead import WIDE
from compiler.passes.norm import Norm, is_norm, read_norm
from compiler.passes.report import PassReport, Reason
from compiler.passes.rewriting import RefusedError, erase_unread, rewrite_each
from compiler.specs import row_major


def expand_batchnorm(graph: Graph) -> tuple[Graph, PassReport]:
    """Replace every batch norm in float32 or float64 whose parts are stored."""
    return rewrite_each("expand_batchnorm", graph, _expand)


def _expand(node: fx.Node, graph: Graph) -> str | None:
    if not is_norm(node):
        return None
    norm = read_norm(node, graph)
    if norm.source.meta["val"].dtype not in WIDE or norm.variance.dtype not in WIDE:
        raise RefusedError(Reason.UNSUPPORTED_DTYPE, f"{norm.source.meta['val'].dtype} would be rounded twice")
    scale, shift = (_constant(norm, graph, name, part) for name, part in (("scale", norm.scale), ("shift", norm.shift)))
    result = graph.add_call(norm.node, torch.ops.aten.addcmul.default, (shift, norm.source, scale))
    norm.result.replace_all_uses_with(result)
    erase_unread(graph, [norm.node, norm.result])
    return "became one multiply-add"


def _constant(norm: Norm, graph: Graph, name: str, formula: Formula) -> fx.Node:
    value = norm.source.meta["val"]
    shape = (norm.variance.shape[0],) + (1,) * (value.dim() - 2)
    return graph.add_constant(
        Constant(
            name=f"{norm.variance.name}.{name}",
            dtype=value.dtype,
            shape=shape,
            strides=row_major(shape),
            formula=formula.reshape(shape),
        )
    )
