"""Identities: copies that a functional graph does not need.

``clone``, ``detach`` and their kin come from dropout in evaluation mode and from lifted constants. In a graph that
writes nothing in place a copy equals its source, unless it exists to change the memory format; that one stays. A copy
that is itself an output stays too, so that an output is never an input's or a constant's own memory.
"""

from typing import Final

import torch
from torch import fx

from compiler import operators
from compiler.graph import Graph, site
from compiler.passes.report import Change, PassReport

_COPIES: Final = frozenset(
    {"aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.lift_fresh_copy.default"}
)


def remove_identities(graph: Graph) -> tuple[Graph, PassReport]:
    """Let the readers of a copy read its source."""
    result = graph.copy()
    changes: list[Change] = []
    for node in list(result.fx.nodes):
        if node.op != "call_function" or operators.name_of(node.target) not in _COPIES:
            continue
        if _changes_format(node) or any(user.op == "output" for user in node.users):
            continue
        source = node.args[0]
        assert isinstance(source, fx.Node), "a copy has a tensor as its source"
        node.replace_all_uses_with(source)
        result.fx.erase_node(node)
        changes.append(Change(site=site(node), what=f"{node.name} reads {source.name} directly"))
    return result, PassReport(name="remove_identities", changes=tuple(changes))


def _changes_format(node: fx.Node) -> bool:
    return node.kwargs.get("memory_format") not in (None, torch.preserve_format)
