"""Fold batch normalisation into the convolution or linear layer that feeds it.

    y = (conv(x, W) + b − mean) · s + beta,  s = gamma / √(var + eps)   →   conv(x, W·s) + (b − mean)·s + beta

The folded weight and bias become formulas over the checkpoint's tensors; no number is computed here. Each batch norm is
either folded or refused with a reason. The graph is functional, so nothing is written between the two operators; what
is left to check: the intermediate has one reader, the weight serves nobody else, every part is a stored constant, the
statistics are those of evaluation mode, and the normalised axis is the layer's output channel. A transposed convolution
keeps its output channels on the weight's axis 1, those of each group by themselves.
"""

import operator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from compiler import operators
from compiler.formula import Formula
from compiler.graph import Constant, Graph, site
from compiler.passes.report import Change, PassReport, Reason, Refusal
from compiler.specs import row_major

_EVALUATION: Final = "aten._native_batch_norm_legit_no_training.default"
_BATCH_STATISTICS: Final = "aten._native_batch_norm_legit.no_stats"
# All of these take (input, weight, bias, …) and keep output channels on the weight's axis 0 and the result's axis 1.
_LAYERS: Final = frozenset(
    {
        "aten.conv1d.default",
        "aten.conv1d.padding",
        "aten.conv2d.default",
        "aten.conv2d.padding",
        "aten.conv3d.default",
        "aten.conv3d.padding",
        "aten.linear.default",
    }
)
# Operator → which argument is the number of groups; the weight's shape is (in, out ÷ groups, …).
_TRANSPOSED: Final = {
    "aten.conv_transpose1d.default": 6,
    "aten.conv_transpose2d.input": 6,
    "aten.conv_transpose3d.input": 6,
}
_CONVOLUTION: Final = "aten.convolution.default"  # either, as its argument 6 says; groups are argument 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """A batch norm that may be folded: the layer before it and the constants of both.

    ``groups`` are those of a transposed convolution, None for any other layer.
    """

    layer: fx.Node
    groups: int | None
    result: fx.Node
    weight: Constant
    bias: Constant | None
    gamma: Constant | None
    beta: Constant | None
    mean: Constant
    variance: Constant
    eps: float


class _RefusedError(Exception):
    """Carries a reason from a check to the report; never leaves this file."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def fold_batchnorm(graph: Graph) -> tuple[Graph, PassReport]:
    """Fold every batch norm for which that is legal."""
    result = graph.copy()
    changes: list[Change] = []
    refusals: list[Refusal] = []
    for node in list(result.fx.nodes):
        if node.op != "call_function" or operators.name_of(node.target) not in (_EVALUATION, _BATCH_STATISTICS):
            continue
        try:
            found = _legal_site(node, result)
        except _RefusedError as refusal:
            refusals.append(Refusal(site=site(node), reason=refusal.reason, detail=refusal.detail))
            continue
        _rewrite(found, result)
        changes.append(Change(site=site(node), what=f"folded into {site(found.layer)}"))
    return result, PassReport(name="fold_batchnorm", changes=tuple(changes), refusals=tuple(refusals))


def _legal_site(norm: fx.Node, graph: Graph) -> _Site:
    if operators.name_of(norm.target) == _BATCH_STATISTICS:
        raise _RefusedError(Reason.BATCH_STATISTICS, "it normalises by the batch's own mean and variance")
    layer, gamma, beta, mean, variance, _, eps = norm.args
    result = _only_result(norm)
    layer = _legal_layer(layer, result)
    weight = _constant(layer.args[1], graph, Reason.WEIGHT_NOT_CONSTANT)
    bias = _optional(layer.args[2] if len(layer.args) > 2 else None, graph, Reason.WEIGHT_NOT_CONSTANT)
    weight_node = layer.args[1]
    assert isinstance(weight_node, fx.Node), "a constant is a placeholder"
    if len(weight_node.users) != 1:
        raise _RefusedError(Reason.SHARED_WEIGHT, f"{weight.name} serves {len(weight_node.users)} operators")
    assert isinstance(eps, float), "the schema says float"
    return _Site(
        layer=layer,
        groups=_transposed_groups(layer),
        result=result,
        weight=weight,
        bias=bias,
        gamma=_optional(gamma, graph, Reason.STATISTICS_NOT_CONSTANT),
        beta=_optional(beta, graph, Reason.STATISTICS_NOT_CONSTANT),
        mean=_constant(mean, graph, Reason.STATISTICS_NOT_CONSTANT),
        variance=_constant(variance, graph, Reason.STATISTICS_NOT_CONSTANT),
        eps=eps,
    )


def _only_result(norm: fx.Node) -> fx.Node:
    """The normalised tensor: the operator also returns saved statistics, which nobody may read."""
    for user in norm.users:
        if user.target is not operator.getitem or user.args[1] != 0:
            raise _RefusedError(Reason.OTHER_USE, "its saved statistics are read")
    if len(norm.users) != 1:
        raise _RefusedError(Reason.OTHER_USE, "its result is taken more than once, or never")
    return next(iter(norm.users))


def _legal_layer(layer: Any, result: fx.Node) -> fx.Node:
    name = operators.name_of(layer.target) if layer.op == "call_function" else layer.op
    if name not in _LAYERS and name not in _TRANSPOSED and name != _CONVOLUTION:
        raise _RefusedError(Reason.UNSUPPORTED_PRODUCER, f"it follows {layer.name}")
    if len(layer.users) != 1:
        raise _RefusedError(Reason.OTHER_USE, f"{layer.name} is read by {len(layer.users)} operators")
    before, after, weight = layer.meta["val"], result.meta["val"], layer.args[1].meta["val"]
    if before.dim() != weight.dim():
        raise _RefusedError(Reason.CHANNEL_AXIS, f"{layer.name} has no batch axis, or axes between batch and channel")
    if before.dtype != after.dtype:
        raise _RefusedError(Reason.DTYPE_CHANGE, f"{before.dtype} becomes {after.dtype}")
    return layer  # type: ignore[no-any-return]


def _transposed_groups(layer: fx.Node) -> int | None:
    name = operators.name_of(layer.target)
    if name == _CONVOLUTION:
        return int(layer.args[8]) if layer.args[6] else None  # type: ignore[arg-type]
    if name not in _TRANSPOSED:
        return None
    place = _TRANSPOSED[name]
    return int(layer.args[place]) if len(layer.args) > place else 1  # type: ignore[arg-type]


def _constant(node: Any, graph: Graph, otherwise: Reason) -> Constant:
    if not isinstance(node, fx.Node) or node.op != "placeholder" or node.target not in graph.constants:
        raise _RefusedError(otherwise, f"{getattr(node, 'name', node)} is not a stored tensor")
    return graph.constants[str(node.target)]


def _optional(node: Any, graph: Graph, otherwise: Reason) -> Constant | None:
    return None if node is None else _constant(node, graph, otherwise)


def _rewrite(found: _Site, graph: Graph) -> None:
    layer = found.layer
    weight_formula, bias_formula = _formulas(found)
    old_weight = layer.args[1]
    assert isinstance(old_weight, fx.Node), "a constant is a placeholder"
    value = old_weight.meta["val"]
    weight, bias = found.weight, (_channels(found),)
    new_weight = _add_constant(
        graph,
        Constant(
            name=f"{weight.name}.folded",
            dtype=weight.dtype,
            shape=weight.shape,
            strides=weight.strides,
            formula=weight_formula,
        ),
        value,
    )
    new_bias = _add_constant(
        graph,
        Constant(
            name=f"{weight.name}.folded_bias",
            dtype=weight.dtype,
            shape=bias,
            strides=row_major(bias),
            formula=bias_formula,
        ),
        value.new_empty(bias),
    )
    with graph.fx.inserting_before(layer):
        folded = graph.fx.call_function(
            layer.target,  # type: ignore[arg-type]
            (layer.args[0], new_weight, new_bias, *layer.args[3:]),
            dict(layer.kwargs),
        )
    folded.meta = dict(layer.meta)
    found.result.replace_all_uses_with(folded)
    norm = found.result.args[0]
    assert isinstance(norm, fx.Node), "the result is taken from a norm"
    for node in (found.result, norm, layer):
        graph.fx.erase_node(node)


def _formulas(found: _Site) -> tuple[Formula, Formula]:
    """The folded weight and bias over checkpoint tensors."""
    scale = (found.variance.formula + found.eps).rsqrt()
    if found.gamma is not None:
        scale = found.gamma.formula * scale
    weight = _scaled(found, scale)
    if found.bias is not None:
        shift = (found.bias.formula - found.mean.formula) * scale
        return weight, shift if found.beta is None else shift + found.beta.formula
    shift = found.mean.formula * scale
    return weight, -shift if found.beta is None else found.beta.formula - shift


def _channels(found: _Site) -> int:
    return found.weight.shape[0] if found.groups is None else found.weight.shape[1] * found.groups


def _scaled(found: _Site, scale: Formula) -> Formula:
    """The weight with each output channel times its scale."""
    weight, shape = found.weight.formula, found.weight.shape
    if found.groups is None:
        return weight * scale.reshape((shape[0],) + (1,) * (len(shape) - 1))
    each, kernel = shape[1], shape[2:]
    if found.groups == 1:
        return weight * scale.reshape((1, each, *(1 for _ in kernel)))
    grouped = weight.reshape((found.groups, shape[0] // found.groups, each, *kernel))
    return (grouped * scale.reshape((found.groups, 1, each, *(1 for _ in kernel)))).reshape(shape)


def _add_constant(graph: Graph, constant: Constant, value: torch.Tensor) -> fx.Node:
    first_operator = next(node for node in graph.fx.nodes if node.op != "placeholder")
    with graph.fx.inserting_before(first_operator):
        node = graph.fx.placeholder(constant.name)
    node.meta["val"] = value
    graph.constants[constant.name] = constant
    return node
