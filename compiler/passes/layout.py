"""Lay the weights of 2-D convolutions out channels-last.

The CPU's convolutions compute in that layout; weights that lie row-major are reordered in every call, and so are the
values between. Only strides change: formulas give the same elements, evaluated into another order once for each
checkpoint. The values between follow by themselves, since a convolution answers in the layout of its weight; an output
that was row-major is made so again.

Source: torch's guide to the memory format; ResNet-18 size, batch 4, 2 cores: docs in
``benchmarks/results/compiler.json``.
"""

from typing import Any, Final

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher

from compiler import operators
from compiler.graph import Constant, Graph
from compiler.lowering import ALWAYS_HOLDS
from compiler.passes.report import Change, PassReport, Reason, Refusal

_CONVOLUTIONS: Final = frozenset({"aten.conv2d.default", "aten.conv2d.padding", "aten.convolution.default"})


def lay_out(graph: Graph) -> tuple[Graph, PassReport]:
    """Give every weight that only 2-D convolutions read the strides of ``channels_last``."""
    result = graph.copy()
    changes: list[Change] = []
    refusals: list[Refusal] = []
    for node in result.fx.nodes:
        readers = [user for user in node.users if _is_weight_of(node, user)]
        if node.op != "placeholder" or node.target not in result.constants or not readers:
            continue
        constant = result.constants[node.target]
        if len(readers) < len(node.users):
            others = len(node.users) - len(readers)
            refusals.append(
                Refusal(site=constant.name, reason=Reason.SHARED_WEIGHT, detail=f"{others} operators read it otherwise")
            )
            continue
        if node.meta["val"].is_contiguous(memory_format=torch.channels_last):
            continue
        node.meta["val"] = node.meta["val"].contiguous(memory_format=torch.channels_last)
        result.constants[node.target] = _laid_out(constant, node.meta["val"])
        changes.append(Change(site=constant.name, what="laid out channels-last"))
    if changes:
        _spread(result.fx)
    return result, PassReport(name="lay_out", changes=tuple(changes), refusals=tuple(refusals))


def _is_weight_of(node: fx.Node, user: fx.Node) -> bool:
    if user.op != "call_function" or operators.name_of(user.target) not in _CONVOLUTIONS:
        return False
    is_transposed = operators.name_of(user.target) == "aten.convolution.default" and bool(user.args[6])
    reads = [argument for argument in user.all_input_nodes if argument is node]
    return user.args[1] is node and len(reads) == 1 and node.meta["val"].dim() == 4 and not is_transposed


def _laid_out(constant: Constant, value: Tensor) -> Constant:
    return Constant(
        name=constant.name,
        dtype=constant.dtype,
        shape=constant.shape,
        strides=tuple(value.stride()),
        formula=constant.formula,
    )


def _spread(graph: fx.Graph) -> None:
    """Find the layout of every value anew; outputs keep theirs."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    before = {node: node.meta["val"].is_contiguous() for node in output.all_input_nodes}
    tracing: Any = next(node.meta["val"] for node in graph.nodes if node.op == "placeholder")
    with tracing.fake_mode, enable_python_dispatcher():
        for node in graph.nodes:
            if node.op == "call_function":
                arguments, keywords = fx.node.map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
                node.meta["val"] = _held(node)(*arguments, **keywords)
    for node, was_contiguous in before.items():
        if was_contiguous and not node.meta["val"].is_contiguous():
            with graph.inserting_before(output):
                copied = graph.call_function(
                    torch.ops.aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
                )
            copied.meta = {**node.meta, "val": node.meta["val"].contiguous()}
            output.replace_input_with(node, copied)


def _held(node: fx.Node) -> Any:
    """The function of a node, with views that hold for some strides only as lowering writes them."""
    found = operators.find(ALWAYS_HOLDS.get(operators.name_of(node.target), ""))
    return node.target if found is None else found.function
