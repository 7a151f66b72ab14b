"""Attention that is written out, product by product, becomes one operator with its scale explicit.

    softmax(factor · q @ kᵀ + masks) @ v   →   scaled_dot_product_attention(q, k, v, attn_mask, scale=factor)

The pattern is read by meaning, from the softmax up and down: any order of scales and masks, on any side, in batches of
one or two axes. torch's operator then picks a kernel that never holds the scores; what it makes of rows that are masked
whole is put right (``masks``). Refused: weights that somebody else reads, factors and masks that do not fit, operands
whose batches differ.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from compiler import operators
from compiler.graph import Graph
from compiler.passes.masks import one_mask, rounded, without_empty_rows
from compiler.passes.report import PassReport, Reason
from compiler.passes.rewriting import RefusedError, erase_unread, rewrite_each
from compiler.passes.scores import CONVERSIONS, PRODUCTS, Bias, Scores, read_scores, split_factor

_SOFTMAX: Final = frozenset({"aten.softmax.int", "aten._softmax.default"})
_ATEN: Final = torch.ops.aten


def fuse_attention(graph: Graph) -> tuple[Graph, PassReport]:
    """Replace every attention for which that is legal."""
    return rewrite_each("fuse_attention", graph, _fuse)


def _fuse(node: fx.Node, graph: Graph) -> str | None:
    if operators.name_of(node.target) not in _SOFTMAX:
        return None
    scores, weighted = read_scores(node.args[0], graph), _weighted(node)
    if scores is None or weighted is None:
        return None
    result, weights = weighted[-1], weighted[:-1]
    _check_readers((scores.product, *scores.between, *weights))
    _check_values(node, scores, result)
    query, key_T, value = *scores.product.args[:2], result.args[1]
    assert isinstance(query, fx.Node) and isinstance(key_T, fx.Node) and isinstance(value, fx.Node)  # noqa: PT018
    _check_operands(query, key_T, value, scores)
    dtype = query.meta["val"].dtype
    scores = rounded(scores, dtype)
    query, first = split_factor(query, graph)
    key, second = _key(key_T, result, graph)
    factor = scores.factor * first * second
    if not factor > 0.0:
        raise RefusedError(Reason.SCALE, f"scores are scaled by {factor}")
    mask = one_mask(scores, dtype, result, graph)
    attended = _attend((query, key, value), mask, factor, scores, result, graph)
    result.replace_all_uses_with(attended)
    erase_unread(graph, _upwards(result))
    return f"{result.name} became attention with scale {factor:.6g}" + (" and a mask" if mask is not None else "")


def _weighted(softmax: fx.Node) -> list[fx.Node] | None:
    """From the softmax to the product with the values, conversions of dtype between; None where there is no such."""
    path = [softmax]
    while True:
        readers = list(path[-1].users)
        products = [user for user in readers if operators.name_of(user.target) in PRODUCTS and user.args[0] is path[-1]]
        if products:
            return [*path, products[0]]
        if len(readers) != 1 or operators.name_of(readers[0].target) not in CONVERSIONS:
            return None
        path.append(readers[0])


def _check_readers(nodes: Sequence[fx.Node]) -> None:
    for node in nodes:
        if len(node.users) != 1:
            raise RefusedError(Reason.OTHER_USE, f"{node.name} is read by {len(node.users)} operators")


def _check_values(softmax: fx.Node, scores: Scores, result: fx.Node) -> None:
    rank = softmax.meta["val"].dim()
    if softmax.args[1] not in (-1, rank - 1):
        raise RefusedError(Reason.SHAPE, f"{softmax.name} is taken over axis {softmax.args[1]} of {rank}")
    biases = (mask.node for mask in scores.masks if isinstance(mask, Bias))
    dtypes = {
        operand.meta["val"].dtype
        for operand in (*scores.product.all_input_nodes, *biases, *result.all_input_nodes[1:], result)
    }
    if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
        raise RefusedError(Reason.DTYPE_CHANGE, f"its operands are {', '.join(sorted(map(str, dtypes)))}")


def _check_operands(query: fx.Node, key_T: fx.Node, value: fx.Node, scores: Scores) -> None:
    shapes = [operand.meta["val"].shape for operand in (query, key_T, value)]
    if {len(shape) for shape in shapes} not in ({3}, {4}):
        raise RefusedError(Reason.SHAPE, f"its operands have {sorted({len(shape) for shape in shapes})} axes")
    if not all(_equal(shapes[0][:-2], shape[:-2]) for shape in shapes[1:]):
        raise RefusedError(Reason.SHAPE, "queries, keys and values come in different batches")
    size = scores.product.meta["val"].shape
    if not all(_equal(node.meta["val"].shape, size) for node in scores.between):
        raise RefusedError(Reason.SHAPE, "a mask has more places than there are scores")


def _equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(statically_known_true(a == b) for a, b in zip(first, second, strict=True))


def _key(key_T: fx.Node, before: fx.Node, graph: Graph) -> tuple[fx.Node, float]:
    """The keys as rows, and the number that they were scaled by."""
    node, factor = split_factor(key_T, graph)
    if not _swaps_last_axes(node):
        return graph.add_call(before, _ATEN.transpose.int, (node, -2, -1)), factor
    inner = node.args[0]
    assert isinstance(inner, fx.Node), "the schema says tensor"
    if len(node.users) != 1:
        return inner, factor
    key, more = split_factor(inner, graph)
    return key, factor * more


def _swaps_last_axes(node: fx.Node) -> bool:
    rank = node.meta["val"].dim()
    arguments: Any = node.args
    match operators.name_of(node.target):
        case "aten.transpose.int":
            return {axis % rank for axis in arguments[1:3]} == {rank - 2, rank - 1}
        case "aten.permute.default":
            order = [axis % rank for axis in arguments[1]]
            return order == [*range(rank - 2), rank - 1, rank - 2]
        case _:
            return False


def _attend(
    operands: tuple[fx.Node, ...],
    mask: fx.Node | None,
    factor: float,
    scores: Scores,
    before: fx.Node,
    graph: Graph,
) -> fx.Node:
    """The operator; kernels take two axes before rows and columns, so a lone one gets company."""
    alone = operands[0].meta["val"].dim() == 3
    if alone:
        operands = tuple(graph.add_call(before, _ATEN.unsqueeze.default, (operand, 0)) for operand in operands)
    attended = graph.add_call(
        before, _ATEN.scaled_dot_product_attention.default, (*operands, mask, 0.0, False), {"scale": factor}
    )
    attended = without_empty_rows(attended, mask, scores, before, graph)
    return graph.add_call(before, _ATEN.squeeze.dim, (attended, 0)) if alone else attended


def _upwards(node: fx.Node) -> list[fx.Node]:
    """A few operators above ``node``: those that the pattern was made of are among them."""
    found: dict[fx.Node, None] = {node: None}
    waiting = [node]
    while waiting and len(found) < 64:
        for operand in waiting.pop().all_input_nodes:
            if operand.op == "call_function" and operand not in found:
                found[operand] = None
                waiting.append(operand)
    return list(found)
