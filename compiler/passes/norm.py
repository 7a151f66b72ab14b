"""A batch norm in evaluation mode, as passes see it: for each channel a scale and a shift, both formulas.

y = (x − mean) · s + beta = x · s + (beta − mean · s),  s = gamma / √(var + eps)
"""

import operator
from dataclasses import dataclass
from typing import Final

from torch import fx

from compiler import operators
from compiler.formula import Formula
from compiler.graph import Constant, Graph
from compiler.passes.layer import stored
from compiler.passes.report import Reason
from compiler.passes.rewriting import RefusedError

_EVALUATION: Final = "aten._native_batch_norm_legit_no_training.default"
_BATCH_STATISTICS: Final = "aten._native_batch_norm_legit.no_stats"


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A batch norm whose statistics and parameters are constants. ``result`` is the normalised tensor."""

    node: fx.Node
    source: fx.Node
    result: fx.Node
    variance: Constant
    scale: Formula
    mean: Formula
    beta: Formula | None

    @property
    def shift(self) -> Formula:
        """What is added after scaling, for each channel."""
        moved = self.mean * self.scale
        return -moved if self.beta is None else self.beta - moved


def is_norm(node: fx.Node) -> bool:
    """Whether an operator is a batch norm that reads stored statistics or the batch's own."""
    return operators.name_of(node.target) in (_EVALUATION, _BATCH_STATISTICS)


def read_norm(node: fx.Node, graph: Graph) -> Norm:
    """The norm at ``node``.

    Raises:
        RefusedError: It uses the batch's statistics, changes the dtype, has a part that is no constant, or returns its
            statistics to somebody.
    """
    if operators.name_of(node.target) == _BATCH_STATISTICS:
        raise RefusedError(Reason.BATCH_STATISTICS, "it normalises by the batch's own mean and variance")
    source, gamma_node, beta_node, mean_node, variance_node, _, eps = node.args
    assert isinstance(source, fx.Node) and isinstance(eps, float), "the schema says tensor and float"  # noqa: PT018
    result = _only_result(node)
    before, after = source.meta["val"].dtype, result.meta["val"].dtype
    if before != after:
        raise RefusedError(Reason.DTYPE_CHANGE, f"{before} becomes {after}")
    why = Reason.STATISTICS_NOT_CONSTANT
    gamma, beta = (None if part is None else stored(part, graph, why) for part in (gamma_node, beta_node))
    mean, variance = (stored(part, graph, why) for part in (mean_node, variance_node))
    deviation = (variance.formula + eps).rsqrt()
    return Norm(
        node=node,
        source=source,
        result=result,
        variance=variance,
        scale=deviation if gamma is None else gamma.formula * deviation,
        mean=mean.formula,
        beta=None if beta is None else beta.formula,
    )


def _only_result(norm: fx.Node) -> fx.Node:
    """The normalised tensor: the operator also returns saved statistics, which nobody may read."""
    for user in norm.users:
        if user.target is not operator.getitem or user.args[1] != 0:
            raise RefusedError(Reason.OTHER_USE, "its saved statistics are read")
    if len(norm.users) != 1:
        raise RefusedError(Reason.OTHER_USE, "its result is taken more than once, or never")
    return next(iter(norm.users))
