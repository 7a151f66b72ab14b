"""Lowering: the FX graph that passes left becomes a ``Definition`` in canonical form.

Constants are sorted by name and numbered; node names disappear; arguments take their schema's names and order, and
those at their default are left out; device, layout and pinning arguments are checked and dropped, because a program
says where it runs elsewhere. The same model gives the same definition in every process.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, fx

from compiler import dtypes, operators
from compiler.definition import (
    MEMORY_FORMATS,
    Argument,
    Atom,
    Definition,
    DTypeName,
    MemoryFormatName,
    Node,
    Output,
    Ref,
)
from compiler.errors import UnsupportedOperatorError
from compiler.graph import Constant, Graph, site
from compiler.operators import Operator
from compiler.specs import ConstantSpec, TensorSpec

_FORMAT_NAME: Final = {getattr(torch, name): name for name in MEMORY_FORMATS}
# A view holds only for some strides, and those differ between kernels and devices (attention on CPU and on meta);
# reshape gives the same elements always, and is a view where it can be.
ALWAYS_HOLDS: Final = {
    "aten.view.default": "aten.reshape.default",
    "aten._unsafe_view.default": "aten.reshape.default",
}
_PLACEMENT: Final = {
    "device": (None, torch.device("cpu")),
    "layout": (None, torch.strided),
    "pin_memory": (None, False),
}


def lower(graph: Graph) -> Definition:
    """Write the graph down in canonical form.

    Raises:
        UnsupportedOperatorError: An argument cannot be stated in a program (another device, a nested list, …).
    """
    constants = sorted(graph.constants.items(), key=lambda entry: entry[1].name)
    targets = {target: number for number, target in enumerate((*graph.inputs, *(target for target, _ in constants)))}
    numbers = {node: targets[node.target] for node in graph.fx.nodes if node.op == "placeholder"}
    on_request = {node for node in numbers if node.target in graph.inputs}
    nodes: list[Node] = []
    for node in graph.fx.nodes:
        if node.op != "call_function":
            continue
        if not on_request.isdisjoint(node.all_input_nodes):
            on_request.add(node)
        nodes.append(_node(node, numbers, graph.model, phase="request" if node in on_request else "constant"))
        numbers[node] = len(numbers)
    return Definition(
        dims=tuple(sorted(graph.dims, key=lambda dim: dim.name)),
        inputs=tuple(graph.inputs.values()),
        requires=_requires(graph),
        literals=tuple(graph.literals[name] for name in sorted(graph.literals)),
        constants=tuple(_constant(constant) for _, constant in constants),
        nodes=tuple(nodes),
        outputs=tuple(_outputs(graph, numbers)),
    )


def _requires(graph: Graph) -> tuple[TensorSpec, ...]:
    read = {name for constant in graph.constants.values() for name in constant.formula.tensors}
    return tuple(graph.tensors[name] for name in sorted(read))


def _constant(constant: Constant) -> ConstantSpec:
    return ConstantSpec(
        name=constant.name,
        dtype=dtypes.NAME[constant.dtype],
        shape=constant.shape,
        strides=constant.strides,
        formula=constant.formula,
    )


def _node(node: fx.Node, numbers: Mapping[fx.Node, int], model: str, *, phase: str) -> Node:
    name = operators.name_of(node.target)
    operator = operators.find(ALWAYS_HOLDS.get(name, name))
    assert operator is not None, "capture refuses unknown operators"
    try:
        arguments = tuple(_arguments(operator, node, numbers))
    except _UnstatableError as error:
        raise UnsupportedOperatorError(model=model, operator=operator.name, site=site(node), why=str(error)) from None
    return Node(
        operator=operator.name,
        arguments=arguments,
        device_set=operator.devices,
        memory_layout=_layout(node.meta["val"]),
        phase=phase,
        sync_mode="inline",
    )


class _UnstatableError(Exception):
    """An argument that no program can hold; becomes an UnsupportedOperatorError with its operator's name."""


def _arguments(operator: Operator, node: fx.Node, numbers: Mapping[fx.Node, int]) -> Iterator[tuple[str, Argument]]:
    given = dict(zip((parameter.name for parameter in operator.parameters), node.args, strict=False))
    given.update(node.kwargs)
    for parameter in operator.parameters:
        value = given.get(parameter.name, parameter.default)
        if parameter.name in _PLACEMENT:
            if value not in _PLACEMENT[parameter.name]:
                raise _UnstatableError(f"its argument {parameter.name} is {value}")
        elif not (parameter.has_default and _same(value, parameter.default)):
            yield parameter.name, _argument(value, numbers)


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _argument(value: Any, numbers: Mapping[fx.Node, int]) -> Argument:
    if isinstance(value, list | tuple):
        return tuple(_atom(element, numbers) for element in value)
    return _atom(value, numbers)


def _atom(value: Any, numbers: Mapping[fx.Node, int]) -> Atom:
    if isinstance(value, fx.Node):
        return Ref(numbers[value])
    if isinstance(value, torch.dtype) and value in dtypes.NAME:
        return DTypeName(dtypes.NAME[value])
    if isinstance(value, torch.memory_format) and value in _FORMAT_NAME:
        return MemoryFormatName(_FORMAT_NAME[value])
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    raise _UnstatableError(f"a {type(value).__name__} ({value}) cannot stand in a program")


def _layout(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "none"
    if value.is_contiguous():
        return "row_major"
    if value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    return "strided"


def _outputs(graph: Graph, numbers: Mapping[fx.Node, int]) -> Iterator[Output]:
    symbols = _symbols(graph)
    output = next(node for node in reversed(graph.fx.nodes) if node.op == "output")
    values = output.args[0]
    assert isinstance(values, tuple | list), "torch.export returns a tuple"
    for name, node in zip(graph.output_names, values, strict=True):
        assert isinstance(node, fx.Node), "capture refuses outputs that are no tensors"
        value = node.meta["val"]
        yield Output(
            value=numbers[node],
            spec=TensorSpec(
                name=name,
                dtype=dtypes.NAME[value.dtype],
                shape=tuple(size if isinstance(size, int) else None for size in value.shape),
                dims=tuple(None if isinstance(size, int) else symbols.get(str(size), "") for size in value.shape),
            ),
        )


def _symbols(graph: Graph) -> dict[str, str]:
    """Torch's symbol → the dimension's name, read off the inputs."""
    symbols: dict[str, str] = {}
    for node in graph.fx.nodes:
        if node.op == "placeholder" and node.target in graph.inputs:
            for size, dim in zip(node.meta["val"].shape, graph.inputs[node.target].dims, strict=True):
                if dim:
                    symbols[str(size)] = dim
    return symbols
