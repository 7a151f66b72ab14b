"""Dead code: operators whose results nobody reads, and constants that no operator reads any more.

Every operator of a captured graph is pure, so what has no reader has no effect. Inputs stay, read or not: they belong
to the call.
"""

from torch import fx

from compiler.graph import Graph, site
from compiler.passes.report import Change, PassReport


def remove_dead(graph: Graph) -> tuple[Graph, PassReport]:
    """Remove unread operators and constants."""
    result = graph.copy()
    changes: list[Change] = []
    for node in reversed(list(result.fx.nodes)):
        if node.users or not _may_go(node, result):
            continue
        if node.op == "placeholder":
            constant = result.constants.pop(str(node.target))
            changes.append(Change(site=constant.name, what="unread constant removed"))
        else:
            changes.append(Change(site=site(node), what=f"unread {node.name} removed"))
        result.fx.erase_node(node)
    _drop_unread_literals(result)
    return result, PassReport(name="remove_dead", changes=tuple(reversed(changes)))


def _may_go(node: fx.Node, graph: Graph) -> bool:
    return node.op == "call_function" or (node.op == "placeholder" and node.target in graph.constants)


def _drop_unread_literals(graph: Graph) -> None:
    read = {name for constant in graph.constants.values() for name in constant.formula.literals}
    for name in graph.literals.keys() - read:
        del graph.literals[name]
