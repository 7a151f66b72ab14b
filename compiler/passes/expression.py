"""An operator over constants as a formula: what fold_constants can express, and what it refuses.

A formula is computed in float64 and rounded once, at its end. So arithmetic over floats is expressed where no value in
between has a narrower type than its operands (a model that rounds on purpose would lose that), and operators that only
move elements whatever their type. Views that repeat elements (expand) are not expressed: formulas hold no copies.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

from torch import Tensor, fx

from compiler import operators
from compiler.formula import Formula
from compiler.graph import Graph
from compiler.passes.report import Reason
from compiler.passes.rewriting import RefusedError

Translate = Callable[[Any], Formula]


def formula_of(node: fx.Node, graph: Graph) -> Formula:
    """The formula of an operator's result over what the graph's constants are computed from.

    Raises:
        RefusedError: An operator has no operation of formulas, or rounds in between.
    """
    known: dict[fx.Node, Formula] = {}

    def translate(value: Any) -> Formula:
        constant = graph.constant_of(value)
        if constant is not None:
            return constant.formula
        if value not in known:
            known[value] = _translated(value, translate)
        return known[value]

    return translate(node)


def _translated(node: fx.Node, translate: Translate) -> Formula:
    name = operators.name_of(node.target)
    rule = _MOVES.get(name)
    if rule is not None:
        return rule(node, translate)
    rule = _ARITHMETIC.get(name)
    if rule is None:
        raise RefusedError(Reason.NO_FORMULA, f"no operation of formulas does what {name} does")
    _check_dtypes(node)
    return rule(node, translate)


def _check_dtypes(node: fx.Node) -> None:
    result = _value(node).dtype
    for operand in node.all_input_nodes:
        value = operand.meta["val"]
        dtype = value.dtype if isinstance(value, Tensor) else result
        if not dtype.is_floating_point or not result.is_floating_point or dtype.itemsize > result.itemsize:
            raise RefusedError(Reason.UNSUPPORTED_DTYPE, f"{node.name} makes {result} of {dtype}")


def _value(node: fx.Node) -> Tensor:
    value = node.meta["val"]
    if not isinstance(value, Tensor):
        raise RefusedError(Reason.NO_FORMULA, f"{node.name} returns more than a tensor")
    return value


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(_value(node).shape)


def _argument(node: fx.Node, place: int, name: str, otherwise: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, otherwise)


def _axis(node: fx.Node, place: int, operand: Any, otherwise: int = 0) -> int:
    rank = max(operand.meta["val"].dim(), 1)
    axis: int = _argument(node, place, "dim", otherwise) % rank
    return axis


def _reshape(node: fx.Node, translate: Translate) -> Formula:
    return translate(node.args[0]).reshape(_shape(node))


def _same(node: fx.Node, translate: Translate) -> Formula:
    return translate(node.args[0])


def _permute(node: fx.Node, translate: Translate) -> Formula:
    order: Any = node.args[1]
    return translate(node.args[0]).permute(tuple(axis % len(order) for axis in order))


def _transpose(node: fx.Node, translate: Translate) -> Formula:
    rank = len(_shape(node))
    swapped: Any = node.args[1:3] if len(node.args) > 2 else (0, 1)
    order = list(range(rank))
    if rank > 1:
        first, second = (axis % rank for axis in swapped)
        order[first], order[second] = order[second], order[first]
    return translate(node.args[0]).permute(tuple(order))


def _slice(node: fx.Node, translate: Translate) -> Formula:
    operand: Any = node.args[0]
    axis = _axis(node, 1, operand)
    size = operand.meta["val"].shape[axis]
    start, stop, _ = slice(_argument(node, 2, "start", None), _argument(node, 3, "end", None)).indices(size)
    if _argument(node, 4, "step", 1) != 1:
        raise RefusedError(Reason.NO_FORMULA, f"{node.name} leaves out every other element")
    return translate(operand).narrow(axis, start, max(stop - start, 0))


def _select(node: fx.Node, translate: Translate) -> Formula:
    operand: Any = node.args[0]
    axis = _axis(node, 1, operand)
    place: Any = node.args[2]
    return translate(operand).narrow(axis, place % operand.meta["val"].shape[axis], 1).reshape(_shape(node))


def _narrow(node: fx.Node, translate: Translate) -> Formula:
    operand: Any = node.args[0]
    axis = _axis(node, 1, operand)
    start, length = (int(number) for number in node.args[2:4])  # type: ignore[arg-type]
    return translate(operand).narrow(axis, start % operand.meta["val"].shape[axis], length)


def _cat(node: fx.Node, translate: Translate) -> Formula:
    parts: Any = node.args[0]
    if len({part.meta["val"].dtype for part in parts}) > 1:
        raise RefusedError(Reason.UNSUPPORTED_DTYPE, f"{node.name} mixes dtypes")
    axis = _axis(node, 1, parts[0])
    return translate(parts[0]) if len(parts) == 1 else Formula.cat([translate(part) for part in parts], axis)


def _stack(node: fx.Node, translate: Translate) -> Formula:
    parts: Any = node.args[0]
    shape = _shape(node)
    axis = int(_argument(node, 1, "dim", 0)) % len(shape)
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    slices = [translate(part).reshape(one) for part in parts]
    return slices[0] if len(slices) == 1 else Formula.cat(slices, axis)


def _scaled(formula: Formula, factor: float) -> Formula:
    return formula if factor == 1 else formula * factor


def _add(node: fx.Node, translate: Translate, sign: int = 1) -> Formula:
    arguments: Any = node.args
    first, second = arguments[:2]
    alpha: Any = _argument(node, 2, "alpha", 1)
    if not isinstance(second, fx.Node):
        return translate(first) + float(sign * alpha * second)
    right = _scaled(translate(second), float(alpha))
    return translate(first) + right if sign > 0 else translate(first) - right


def _subtract(node: fx.Node, translate: Translate) -> Formula:
    return _add(node, translate, -1)


def _subtract_from(node: fx.Node, translate: Translate) -> Formula:
    arguments: Any = node.args
    return translate(arguments[0]) * -float(_argument(node, 2, "alpha", 1)) + float(arguments[1])


def _multiply(node: fx.Node, translate: Translate) -> Formula:
    arguments: Any = node.args
    first, second = arguments[:2]
    return translate(first) * (translate(second) if isinstance(second, fx.Node) else float(second))


def _divide(node: fx.Node, translate: Translate) -> Formula:
    arguments: Any = node.args
    first, second = arguments[:2]
    if isinstance(second, fx.Node):
        return translate(first) / translate(second)
    if not second:
        raise RefusedError(Reason.NO_FORMULA, f"{node.name} divides by zero")
    return translate(first) * (1.0 / float(second))


def _power(node: fx.Node, translate: Translate) -> Formula:
    operand, exponent = translate(node.args[0]), node.args[1]
    if exponent == 2:
        return operand * operand
    if exponent == 0.5:
        return operand.sqrt()
    if exponent == -0.5:
        return operand.rsqrt()
    raise RefusedError(Reason.NO_FORMULA, f"no operation of formulas raises to the power {exponent}")


def _summed(node: fx.Node, translate: Translate, dims: Any) -> tuple[Formula, int]:
    """(the sum over ``dims``, or over all axes where there are none; how many elements became one)."""
    shape = _shape(node.args[0])  # type: ignore[arg-type]
    axes = tuple(sorted(axis % len(shape) for axis in dims)) if dims else tuple(range(len(shape)))
    operand = translate(node.args[0])
    count = prod(shape[axis] for axis in axes)
    return (operand.sum(axes) if axes else operand).reshape(_shape(node)), count


def _sum(node: fx.Node, translate: Translate) -> Formula:
    return _summed(node, translate, _argument(node, 1, "dim", None))[0]


def _mean(node: fx.Node, translate: Translate) -> Formula:
    total, count = _summed(node, translate, _argument(node, 1, "dim", None))
    return total * (1.0 / count)


def _weight_norm(node: fx.Node, translate: Translate) -> Formula:
    """The weight that weight normalisation makes: v · g / ‖v‖, the norm over all axes but one."""
    direction_node, length_node = node.args[:2]
    shape = _shape(direction_node)  # type: ignore[arg-type]
    kept = _axis(node, 2, direction_node)
    others = tuple(axis for axis in range(len(shape)) if axis != kept)
    direction = translate(direction_node)
    broadcast = tuple(size if axis == kept else 1 for axis, size in enumerate(shape))
    norm = (direction * direction).sum(others).sqrt().reshape(broadcast)
    return direction * (translate(length_node).reshape(broadcast) / norm)


def _elementwise(build: Callable[[Formula], Formula]) -> Callable[[fx.Node, Translate], Formula]:
    return lambda node, translate: build(translate(node.args[0]))


def _converted(node: fx.Node, translate: Translate) -> Formula:
    operand: Any = node.args[0]
    formula = translate(operand)
    return formula if operand.meta["val"].dtype == _value(node).dtype else formula * 1.0


Rule = Callable[[fx.Node, Translate], Formula]
_MOVES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        (
            "aten.reshape.default",
            "aten.view.default",
            "aten._unsafe_view.default",
            "aten.flatten.using_ints",
            "aten.unflatten.int",
            "aten.unsqueeze.default",
            "aten.squeeze.default",
            "aten.squeeze.dim",
            "aten.squeeze.dims",
        ),
        _reshape,
    ),
    **dict.fromkeys(
        (
            "aten.clone.default",
            "aten.contiguous.default",
            "aten.alias.default",
            "aten.detach.default",
            "aten.lift_fresh_copy.default",
        ),
        _same,
    ),
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _transpose,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.narrow.default": _narrow,
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
}
_ARITHMETIC: Final[Mapping[str, Rule]] = {
    "aten.add.Tensor": _add,
    "aten.add.Scalar": _add,
    "aten.sub.Tensor": _subtract,
    "aten.sub.Scalar": _subtract,
    "aten.rsub.Scalar": _subtract_from,
    "aten.mul.Tensor": _multiply,
    "aten.mul.Scalar": _multiply,
    "aten.div.Tensor": _divide,
    "aten.div.Scalar": _divide,
    "aten.neg.default": _elementwise(lambda x: -x),
    "aten.exp.default": _elementwise(Formula.exp),
    "aten.sqrt.default": _elementwise(Formula.sqrt),
    "aten.rsqrt.default": _elementwise(Formula.rsqrt),
    "aten.square.default": _elementwise(lambda x: x * x),
    "aten.pow.Tensor_Scalar": _power,
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten._to_copy.default": _converted,
    "aten.to.dtype": _converted,
    "aten._weight_norm.default": _weight_norm,
}
