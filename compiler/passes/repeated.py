"""Common subexpressions: an operator that computes again what an earlier one computed is read from there.

Every operator of a captured graph is pure, so the same operator on the same arguments gives the same value. What may
not change is which outputs share memory: where both results reach outputs through views alone, two outputs would become
one tensor, and they are left as they are.
"""

from collections.abc import Hashable
from typing import Any

from torch import fx

from compiler.graph import Graph, site
from compiler.passes.aliases import exposed
from compiler.passes.report import Change, PassReport, Reason, Refusal


def merge_repeated(graph: Graph) -> tuple[Graph, PassReport]:
    """Let the readers of a repeated operator read the first one."""
    result = graph.copy()
    shown = set(exposed(result.fx))
    changes: list[Change] = []
    refusals: list[Refusal] = []
    first: dict[Hashable, fx.Node] = {}
    for node in list(result.fx.nodes):
        if node.op != "call_function":
            continue
        before = first.setdefault(_key(node), node)
        if before is node:
            continue
        if node in shown and before in shown:
            detail = f"{node.name} is {before.name} again, and outputs show both"
            refusals.append(Refusal(site=site(node), reason=Reason.ALIAS, detail=detail))
            continue
        node.replace_all_uses_with(before)
        result.fx.erase_node(node)
        changes.append(Change(site=site(node), what=f"{node.name} is {before.name} again"))
        if node in shown:
            shown.add(before)
    return result, PassReport(name="merge_repeated", changes=tuple(changes), refusals=tuple(refusals))


def _key(node: fx.Node) -> Hashable:
    return node.target, _frozen(node.args), tuple((name, _frozen(node.kwargs[name])) for name in sorted(node.kwargs))


def _frozen(value: Any) -> Hashable:
    """An argument as a key: 1, 1.0 and True are three, and so are 0.0 and −0.0."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return type(value), repr(value) if isinstance(value, float) else value
