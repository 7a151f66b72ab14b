"""Constant folding: what a graph computes from constants alone becomes a constant, computed when weights come.

What no checkpoint tensor goes into becomes a literal (a causal mask, a table of angles); anything else becomes a
formula over checkpoint tensors, where formulas can express it. A view of a weight costs nothing, so it is folded only
where the weight has no other reader and the fold takes no memory. Left alone, with a reason: what an output shows (it
would be the constant's own memory), what would take much more memory than its sources, and what formulas cannot say.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, fx

from compiler import dtypes
from compiler.formula import MAX_STEPS, Formula, compute_steps
from compiler.graph import Constant, Graph
from compiler.literals import tensor_of
from compiler.passes.aliases import exposed, is_view
from compiler.passes.expression import formula_of
from compiler.passes.report import PassReport, Reason
from compiler.passes.rewriting import RefusedError, erase_unread, rewrite_each
from compiler.specs import is_dense, row_major

MAX_GROWTH_BYTES: Final = 2**20  # what a constant may take beyond its sources; a literal has no sources


def fold_constants(graph: Graph) -> tuple[Graph, PassReport]:
    """Fold everything that is computed from constants alone, as far as that is legal."""
    name = "fold_constants"
    graph, first = rewrite_each(name, graph, _fold_literal, among=_literal_roots)
    graph, second = rewrite_each(name, graph, _fold_formula, among=_roots)
    changes, refusals = first.changes + second.changes, first.refusals + second.refusals
    return graph, PassReport(name=name, changes=changes, refusals=refusals)


def fold_literal(node: fx.Node, graph: Graph) -> fx.Node:
    """The literal that an operator over literals gives, in its place; the operator itself where it is none."""
    cone = list(_cone(node, graph))
    if not all(_is_literal(part, graph) for part in cone if part.op == "placeholder"):
        return node
    literal = graph.add_literal(node.name, _evaluate(node, set(cone), graph))
    node.replace_all_uses_with(literal)
    erase_unread(graph, cone)
    return literal


def _literal_roots(graph: Graph) -> list[fx.Node]:
    return _computed(graph, lambda node: _is_literal(node, graph))


def _roots(graph: Graph) -> list[fx.Node]:
    return _computed(graph, lambda node: graph.constant_of(node) is not None)


def _computed(graph: Graph, leaf: Callable[[fx.Node], bool]) -> list[fx.Node]:
    """Operators computed from leaves alone that something else reads, in order."""
    found: dict[fx.Node, None] = {}
    for node in graph.fx.nodes:
        if leaf(node) or (node.op == "call_function" and all(operand in found for operand in node.all_input_nodes)):
            found[node] = None
    return [node for node in found if node.op == "call_function" and any(user not in found for user in node.users)]


def _is_literal(node: fx.Node, graph: Graph) -> bool:
    constant = graph.constant_of(node)
    return constant is not None and constant.formula.is_identity and bool(constant.formula.literals)


def _fold_literal(node: fx.Node, graph: Graph) -> str | None:
    value = node.meta["val"]
    if not isinstance(value, Tensor) or not _worth_it(node, graph):
        return None
    _check_place(node, graph)
    _check_growth(value, sources_bytes=0)
    name = node.name
    fold_literal(node, graph)
    return f"{name} became a literal"


def _fold_formula(node: fx.Node, graph: Graph) -> str | None:
    value = node.meta["val"]
    cone = list(_cone(node, graph))
    read = [constant for part in cone if (constant := graph.constant_of(part)) is not None]
    if not isinstance(value, Tensor) or not any(constant.formula.tensors for constant in read):
        return None
    if not _worth_it(node, graph):
        return None
    _check_place(node, graph)
    formula = formula_of(node, graph)
    _check_growth(value, sources_bytes=sum(prod(entry.shape) * entry.dtype.itemsize for entry in read))
    _check_steps(formula, value, graph)
    shape, strides = tuple(value.shape), tuple(value.stride())
    constant = Constant(
        name=f"{formula.tensors[0]}.computed",
        dtype=value.dtype,
        shape=shape,
        strides=strides if is_dense(shape, strides) else row_major(shape),
        formula=formula,
    )
    name = node.name
    node.replace_all_uses_with(graph.add_constant(constant))
    erase_unread(graph, cone)
    return f"{name} became a formula over {', '.join(formula.tensors)}"


def _cone(node: fx.Node, graph: Graph) -> Iterator[fx.Node]:
    """The operator and everything it is computed from."""
    seen = {node}
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        fresh = [operand for operand in part.all_input_nodes if operand not in seen]
        seen.update(fresh)
        waiting += fresh


def _worth_it(node: fx.Node, graph: Graph) -> bool:
    """Whether something is computed, or a view is the only thing that is read of its sources."""
    cone = set(_cone(node, graph))
    operators = [part for part in cone if part.op == "call_function"]
    if not all(is_view(part) for part in operators):
        return True
    repeats = node.meta["val"].numel() > sum(part.meta["val"].numel() for part in cone if part.op == "placeholder")
    return not repeats and all(set(part.users) <= cone for part in cone - {node})


def _check_place(node: fx.Node, graph: Graph) -> None:
    if node in set(exposed(graph.fx)):
        raise RefusedError(Reason.ALIAS, f"an output would show the memory of a constant in the place of {node.name}")
    if node.meta["val"].dtype not in dtypes.NAME:
        raise RefusedError(Reason.UNSUPPORTED_DTYPE, f"{node.name} is {node.meta['val'].dtype}")


def _check_growth(value: Tensor, *, sources_bytes: int) -> None:
    size_bytes = value.numel() * value.dtype.itemsize
    if size_bytes > sources_bytes + MAX_GROWTH_BYTES:
        raise RefusedError(Reason.TOO_LARGE, f"{size_bytes} bytes would stand for {sources_bytes}")


def _check_steps(formula: Formula, value: Tensor, graph: Graph) -> None:
    if len(formula.steps) > MAX_STEPS:
        raise RefusedError(Reason.TOO_LARGE, f"a formula of {len(formula.steps)} steps, at most {MAX_STEPS} are")
    shapes: dict[tuple[str, str], Any] = {("tensor", name): graph.tensors[name].shape for name in formula.tensors}
    shapes.update({("literal", name): graph.literals[name].shape for name in formula.literals})
    leaves = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    sizes = [step.numel() for step in compute_steps(formula, leaves)]
    if max(sizes) > value.numel() + sum(leaf.numel() for leaf in leaves.values()):
        raise RefusedError(Reason.TOO_LARGE, f"{max(sizes)} elements would be held on the way")


def _evaluate(node: fx.Node, cone: set[fx.Node], graph: Graph) -> Any:
    """The value of an operator over literals, as the model itself computes it."""
    known: dict[fx.Node, Any] = {}
    for part in graph.fx.nodes:
        if part not in cone:
            continue
        constant = graph.constant_of(part)
        if constant is not None:
            known[part] = tensor_of(graph.literals[constant.formula.literals[0]])
            continue
        positional, named = fx.map_arg((part.args, part.kwargs), known.__getitem__)
        with torch.no_grad():
            known[part] = part.target(*positional, **named)
    return known[node]
