"""The masks of an attention as one, and the rows that it leaves without any score.

    mask = 0; in their order: mask + factor · bias, or a number where a condition masks

A row of scores that are all −∞ is NaN in a softmax that a model writes out, and zero in torch's operator. So it is NaN
here, too: what the operator gives for such a row is replaced, unless a mask that is known has none.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import fx

from compiler.graph import Graph
from compiler.literals import tensor_of
from compiler.passes.constants import fold_literal
from compiler.passes.report import Reason
from compiler.passes.rewriting import RefusedError
from compiler.passes.scores import VANISHES, Bias, Fill, Scores

_ATEN: Final = torch.ops.aten


def rounded(scores: Scores, dtype: torch.dtype) -> Scores:
    """The scores with numbers of ``dtype``: −∞ where the model's own scores cannot hold one, its lowest otherwise.

    Raises:
        RefusedError: Beside such a number scores do not vanish.
    """
    held = (scores.product, *scores.between)[-1].meta["val"].dtype
    return replace(scores, masks=tuple(_rounded(mask, held, dtype) for mask in scores.masks))


def _rounded(mask: Bias | Fill, held: torch.dtype, dtype: torch.dtype) -> Bias | Fill:
    if isinstance(mask, Bias):
        return mask
    is_finite = mask.value >= torch.finfo(held).min
    value = max(mask.value, torch.finfo(dtype).min) if is_finite else -torch.inf
    if not value <= VANISHES:
        raise RefusedError(Reason.MASK_VALUE, f"masked scores become {value}, beside which others do not vanish")
    return replace(mask, value=value)


def one_mask(scores: Scores, dtype: torch.dtype, before: fx.Node, graph: Graph) -> fx.Node | None:
    """All masks of ``scores`` as one of at least two and not three axes; None where there is none.

    It is a condition where a lone condition masks with −∞, and otherwise of ``dtype``, what is added to the scores.
    """
    mask: fx.Node | None = None
    match scores.masks:
        case (Fill(condition=condition, keeps=keeps, value=value),) if value == -torch.inf:
            mask = condition if keeps else graph.add_call(before, _ATEN.logical_not.default, (condition,))
        case masks:
            for each in masks:
                mask = _then(mask, each, dtype, before, graph)
    if mask is None:
        return None
    while mask.meta["val"].dim() in (0, 1, 3):
        mask = graph.add_call(before, _ATEN.unsqueeze.default, (mask, 0))
    return _known(mask, graph)


def _then(mask: fx.Node | None, other: Bias | Fill, dtype: torch.dtype, before: fx.Node, graph: Graph) -> fx.Node:
    """What stands in the place of zero scores after one more mask."""
    if isinstance(other, Fill):
        under = graph.add_literal("zero", torch.zeros((), dtype=dtype)) if mask is None else mask
        if other.keeps:
            return graph.add_call(before, _ATEN.where.ScalarOther, (other.condition, under, other.value))
        return graph.add_call(before, _ATEN.where.ScalarSelf, (other.condition, other.value, under))
    bias = other.node
    if other.factor != 1.0:
        bias = graph.add_call(before, _ATEN.mul.Tensor, (bias, other.factor))
    return bias if mask is None else graph.add_call(before, _ATEN.add.Tensor, (mask, bias))


def without_empty_rows(
    attended: fx.Node, mask: fx.Node | None, scores: Scores, before: fx.Node, graph: Graph
) -> fx.Node:
    """The result, NaN in each row whose scores are all masked by −∞."""
    dtype = attended.meta["val"].dtype
    if mask is None:
        return attended
    match scores.masks:
        case (Fill(value=value),) if value > -torch.inf:
            return attended
    if mask.meta["val"].dtype is torch.bool:
        seen = graph.add_call(before, _ATEN.any.dim, (mask, -1, True))
    else:
        largest = graph.add_call(before, _ATEN.amax.default, (mask, [-1], True))
        seen = graph.add_call(before, _ATEN.gt.Scalar, (largest, -torch.inf))
    seen = _known(seen, graph)
    if _is_always(seen, graph):
        return attended
    nothing = graph.add_literal("nan", torch.full((), torch.nan, dtype=dtype))
    return graph.add_call(before, _ATEN.where.self, (seen, attended, nothing))


def _known(node: fx.Node, graph: Graph) -> fx.Node:
    return node if node.op == "placeholder" else fold_literal(node, graph)


def _is_always(condition: fx.Node, graph: Graph) -> bool:
    constant = graph.constant_of(condition)
    if constant is None or not constant.formula.literals:
        return False
    return bool(tensor_of(graph.literals[constant.formula.literals[0]]).all())
