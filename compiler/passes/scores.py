"""Attention scores, read back from what goes into their softmax: queries · keys, one factor, and masks.

    softmax input = factor · (query @ key_T) + Σ factorₖ · biasₖ + Σ (value where a condition masks)

Scaling may stand before or after the product, on either side, and between masks; it is gathered in ``factor``. A mask
that puts a number in the place of a score is read as one that adds it. That is the same only if the score vanishes
beside it: −∞, or at most −2¹⁰⁰.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor, fx

from compiler import operators
from compiler.graph import Graph
from compiler.literals import tensor_of
from compiler.passes.report import Reason
from compiler.passes.rewriting import RefusedError

PRODUCTS: Final = frozenset({"aten.matmul.default", "aten.bmm.default"})
CONVERSIONS: Final = frozenset({"aten._to_copy.default", "aten.to.dtype"})
_SCALINGS: Final = {
    "aten.mul.Tensor": False,
    "aten.mul.Scalar": False,
    "aten.div.Tensor": True,
    "aten.div.Scalar": True,
}
VANISHES: Final = -(2.0**100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """A tensor, times a factor, that is added to the scores."""

    node: fx.Node
    factor: float = 1.0

    def scaled(self, factor: float) -> "Bias":
        """The same, after the scores were scaled."""
        return replace(self, factor=self.factor * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """A number that stands for the scores where a condition holds, or where it does not (``keeps``)."""

    condition: fx.Node
    keeps: bool
    value: float

    def scaled(self, factor: float) -> "Fill":
        """The same, after the scores were scaled."""
        return replace(self, value=self.value * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What was read; ``between`` holds the operators from the product to the softmax, both aside."""

    product: fx.Node
    factor: float = 1.0
    masks: tuple[Bias | Fill, ...] = ()
    between: tuple[fx.Node, ...] = ()

    def scaled(self, factor: float) -> "Scores":
        """All of it times a factor."""
        return replace(self, factor=self.factor * factor, masks=tuple(mask.scaled(factor) for mask in self.masks))

    def masked(self, mask: Bias | Fill) -> "Scores":
        """With one more mask on top."""
        return replace(self, masks=(*self.masks, mask))


def read_scores(node: Any, graph: Graph) -> Scores | None:
    """The scores that end in ``node``; None where no product of matrices leads to it.

    Raises:
        RefusedError: They are scaled by a tensor, or masked by a number beside which scores do not vanish.
    """
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return None
    name = operators.name_of(node.target)
    if name in PRODUCTS:
        return Scores(product=node)
    read = _READERS.get(name)
    found = None if read is None else read(node, graph)
    return None if found is None else replace(found, between=(*found.between, node))


def number_of(value: Any, graph: Graph) -> float | None:
    """A number that is written in the graph, or a literal of one element; None for anything else."""
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, fx.Node) and operators.name_of(value.target) == "aten.full_like.default":
        return number_of(value.args[1], graph)
    constant = graph.constant_of(value)
    if constant is None or not constant.formula.is_identity or not constant.formula.literals:
        return None
    tensor = tensor_of(graph.literals[constant.formula.literals[0]])
    return float(tensor) if tensor.numel() == 1 else None


def split_factor(node: fx.Node, graph: Graph) -> tuple[fx.Node, float]:
    """An operand without the numbers it was scaled by, where nobody else reads the scaled one; and their product."""
    name = operators.name_of(node.target)
    if node.op != "call_function" or name not in _SCALINGS or len(node.users) != 1:
        return node, 1.0
    inner, number = node.args[0], number_of(node.args[1], graph)
    if number is None or not isinstance(inner, fx.Node) or inner.meta["val"].dtype != node.meta["val"].dtype:
        return node, 1.0
    rest, factor = split_factor(inner, graph)
    return rest, factor * _as_factor(number, divides=_SCALINGS[name])


def _as_factor(number: float, *, divides: bool) -> float:
    if divides and number == 0.0:
        raise RefusedError(Reason.SCALE, "it is divided by zero")
    return 1.0 / number if divides else number


def _read_scaled(node: fx.Node, graph: Graph) -> Scores | None:
    divides = _SCALINGS[operators.name_of(node.target)]
    first, second = node.args[:2]
    scores, other = read_scores(first, graph), second
    if scores is None and not divides:
        scores, other = read_scores(second, graph), first
    if scores is None:
        return None
    number = number_of(other, graph)
    if number is None:
        raise RefusedError(Reason.SCALE, f"{node.name} scales scores by {getattr(other, 'name', other)}")
    return scores.scaled(_as_factor(number, divides=divides))


def _read_added(node: fx.Node, graph: Graph) -> Scores | None:
    first, second = node.args[:2]
    if node.kwargs.get("alpha", 1) != 1 or not isinstance(second, fx.Node):
        return None
    for candidate, other in ((first, second), (second, first)):
        scores = read_scores(candidate, graph)
        if scores is not None:
            assert isinstance(other, fx.Node), "the schema says tensor"
            return scores.masked(Bias(node=other))
    return None


def _read_filled(node: fx.Node, graph: Graph) -> Scores | None:
    return _filled(node.args[0], node.args[1], node.args[2], graph, keeps=False)


def _read_chosen(node: fx.Node, graph: Graph) -> Scores | None:
    condition, first, second = node.args[:3]
    kept = _filled(first, condition, second, graph, keeps=True)
    return _filled(second, condition, first, graph, keeps=False) if kept is None else kept


def _filled(candidate: Any, condition: Any, value: Any, graph: Graph, *, keeps: bool) -> Scores | None:
    scores = read_scores(candidate, graph)
    if scores is None:
        return None
    number = number_of(value, graph)
    if number is None or number > VANISHES:
        raise RefusedError(Reason.MASK_VALUE, f"masked scores become {value}, beside which others do not vanish")
    return scores.masked(Fill(condition=condition, keeps=keeps, value=number))


def _read_converted(node: fx.Node, graph: Graph) -> Scores | None:
    value, source = node.meta["val"], node.args[0]
    narrowed = (
        isinstance(source, fx.Node)
        and isinstance(found := source.meta["val"], Tensor)
        and (not value.dtype.is_floating_point or value.dtype.itemsize < found.dtype.itemsize)
    )
    return None if narrowed else read_scores(source, graph)


_READERS: Final[dict[str, Callable[[fx.Node, Graph], Scores | None]]] = {
    **dict.fromkeys(_SCALINGS, _read_scaled),
    **dict.fromkeys(CONVERSIONS, _read_converted),
    "aten.add.Tensor": _read_added,
    "aten.masked_fill.Scalar": _read_filled,
    "aten.masked_fill.Tensor": _read_filled,
    "aten.where.self": _read_chosen,
    "aten.where.ScalarOther": _read_chosen,
    "aten.where.ScalarSelf": _read_chosen,
}
