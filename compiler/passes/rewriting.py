"""A pass that tries one rewrite at many operators; each try ends as a change, as a refusal, or without its pattern."""

from collections.abc import Callable, Iterable

from torch import fx

from compiler.graph import Graph, site
from compiler.passes.report import Change, PassReport, Reason, Refusal


class RefusedError(Exception):
    """Carries a reason from a check to the report; no pass lets it out."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def operators_of(graph: Graph) -> list[fx.Node]:
    """Every operator, in order."""
    return [node for node in graph.fx.nodes if node.op == "call_function"]


def rewrite_each(
    name: str,
    graph: Graph,
    rewrite: Callable[[fx.Node, Graph], str | None],
    *,
    among: Callable[[Graph], Iterable[fx.Node]] = operators_of,
) -> tuple[Graph, PassReport]:
    """Try ``rewrite`` at operators of a copy of ``graph``, in order.

    Args:
        name: The pass's name.
        graph: Left as it is.
        rewrite: (operator, the copy) → what became of it, or None where the pattern is not there. It raises
            ``RefusedError`` before it changes anything.
        among: The copy → where to try; asked once, before the first change.
    """
    result = graph.copy()
    changes: list[Change] = []
    refusals: list[Refusal] = []
    for node in list(among(result)):
        if node._erased:
            continue
        where = site(node)
        try:
            what = rewrite(node, result)
        except RefusedError as refusal:
            refusals.append(Refusal(site=where, reason=refusal.reason, detail=refusal.detail))
            continue
        if what is not None:
            changes.append(Change(site=where, what=what))
    return result, PassReport(name=name, changes=tuple(changes), refusals=tuple(refusals))


def erase_unread(graph: Graph, nodes: Iterable[fx.Node]) -> None:
    """Erase those operators of ``nodes`` that nobody reads any more."""
    places = {node: place for place, node in enumerate(graph.fx.nodes)}
    for node in sorted((node for node in set(nodes) if node in places), key=places.__getitem__, reverse=True):
        if node.op == "call_function" and not node.users:
            graph.fx.erase_node(node)
