"""A convolution or linear layer with stored weights, as passes see it: its channels, and how a formula scales them.

All operators of the table below take (input, weight, bias, …). A linear layer and a convolution keep output channels on
the weight's axis 0 and input channels on axis 1; a transposed convolution has it the other way round. What stands on
axis 1 is counted within a group, and the groups lie one after the other on axis 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from torch import fx

from compiler import operators
from compiler.formula import Formula
from compiler.graph import Constant, Graph, writes_in_place
from compiler.passes.report import Reason
from compiler.passes.rewriting import RefusedError
from compiler.specs import row_major

# Operator → which argument is the number of groups, None where there are none.
_DIRECT: Final[dict[str, int | None]] = {
    "aten.conv1d.default": 6,
    "aten.conv1d.padding": 6,
    "aten.conv2d.default": 6,
    "aten.conv2d.padding": 6,
    "aten.conv3d.default": 6,
    "aten.conv3d.padding": 6,
    "aten.linear.default": None,
}
_TRANSPOSED: Final = {
    "aten.conv_transpose1d.default": 6,
    "aten.conv_transpose2d.input": 6,
    "aten.conv_transpose3d.input": 6,
}
_CONVOLUTION: Final = "aten.convolution.default"  # either, as its argument 6 says; groups are argument 8
_PADDING: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer whose weight and bias are constants, its weight read by nobody else."""

    node: fx.Node
    weight: Constant
    bias: Constant | None
    groups: int
    transposed: bool

    @property
    def out_channels(self) -> int:
        """How many channels the result has."""
        return self.weight.shape[1] * self.groups if self.transposed else self.weight.shape[0]

    @property
    def pads(self) -> bool:
        """Whether zeros are put around the input."""
        padding: Any = self.node.args[_PADDING] if len(self.node.args) > _PADDING else 0
        if isinstance(padding, str):
            return padding != "valid" and any(size != 1 for size in self.weight.shape[2:])
        return any(padding) if isinstance(padding, list | tuple) else bool(padding)

    def scaled_outputs(self, factors: Formula) -> Formula:
        """The weight, each output channel times its element of ``factors``."""
        return self._scaled(factors, axis=1 if self.transposed else 0)

    def scaled_inputs(self, factors: Formula) -> Formula:
        """The weight, each input channel times its element of ``factors``."""
        return self._scaled(factors, axis=0 if self.transposed else 1)

    def _scaled(self, factors: Formula, *, axis: int) -> Formula:
        weight, (first, second, *kernel) = self.weight.formula, self.weight.shape
        ones = (1,) * len(kernel)
        if axis == 0:
            return weight * factors.reshape((first, 1, *ones))
        if self.groups == 1:
            return weight * factors.reshape((1, second, *ones))
        grouped = weight.reshape((self.groups, first // self.groups, second, *kernel))
        return (grouped * factors.reshape((self.groups, 1, second, *ones))).reshape(self.weight.shape)


def is_layer(node: Any) -> bool:
    """Whether a value comes from one of the operators that ``read_layer`` takes."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    name = operators.name_of(node.target)
    return name in _DIRECT or name in _TRANSPOSED or name == _CONVOLUTION


def read_layer(node: fx.Node, graph: Graph) -> Layer:
    """The layer at ``node``.

    Raises:
        RefusedError: Its weight or bias is no constant, or its weight serves another operator, too.
    """
    bias_node = node.args[2] if len(node.args) > 2 else None
    weight = stored(node.args[1], graph, Reason.WEIGHT_NOT_CONSTANT)
    bias = None if bias_node is None else stored(bias_node, graph, Reason.WEIGHT_NOT_CONSTANT)
    readers = len(node.args[1].users)  # type: ignore[union-attr]
    if readers != 1:
        raise RefusedError(Reason.SHARED_WEIGHT, f"{weight.name} serves {readers} operators")
    groups, transposed = _groups(node)
    return Layer(node=node, weight=weight, bias=bias, groups=groups, transposed=transposed)


def refuse_write(node: Any, after: Callable[[fx.Node], Any]) -> None:
    """Refuse where writes in place lead from ``node`` to a layer; ``after`` goes from one to the next.

    Raises:
        RefusedError: Such a write was found.
    """
    first = node
    while isinstance(node, fx.Node) and writes_in_place(node):
        node = after(node)
    if node is not first and is_layer(node):
        raise RefusedError(Reason.MUTATION, f"{first.name} writes to what {node.name} and the norm have between them")


def stored(value: Any, graph: Graph, otherwise: Reason) -> Constant:
    """The constant that ``value`` is.

    Raises:
        RefusedError: It is none, for the reason ``otherwise``.
    """
    constant = graph.constant_of(value)
    if constant is None:
        raise RefusedError(otherwise, f"{getattr(value, 'name', value)} is not a stored tensor")
    return constant


def replace_layer(layer: Layer, graph: Graph, *, source: Any, weight: Formula, bias: Formula, result: fx.Node) -> None:
    """Put a layer of new weights, reading ``source``, in the place of ``result``; the bias has a number per channel."""
    old = layer.weight
    channels = (layer.out_channels,)
    new_weight = graph.add_constant(
        Constant(name=f"{old.name}.folded", dtype=old.dtype, shape=old.shape, strides=old.strides, formula=weight)
    )
    new_bias = graph.add_constant(
        Constant(
            name=f"{old.name}.folded_bias", dtype=old.dtype, shape=channels, strides=row_major(channels), formula=bias
        )
    )
    with graph.fx.inserting_before(layer.node):
        node = graph.fx.call_function(
            layer.node.target,  # type: ignore[arg-type]
            (source, new_weight, new_bias, *layer.node.args[3:]),
            dict(layer.node.kwargs),
        )
    node.meta = dict(layer.node.meta)
    result.replace_all_uses_with(node)


def _groups(node: fx.Node) -> tuple[int, bool]:
    """(number of groups, whether it is a transposed convolution)."""
    name = operators.name_of(node.target)
    arguments: Any = node.args
    if name == _CONVOLUTION:
        return int(arguments[8]), bool(arguments[6])
    place = _TRANSPOSED[name] if name in _TRANSPOSED else _DIRECT[name]
    given = place is not None and len(arguments) > place
    return int(arguments[place]) if given else 1, name in _TRANSPOSED
