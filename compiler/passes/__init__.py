"""The passes, in the order they run: each takes a graph and gives another, with a report.

A pass is ``Graph → (Graph, PassReport)``. It never changes the graph it was given, it checks that a rewrite is legal
before it makes it, and where it sees its pattern but may not rewrite, it says why with a reason code. One pass a file.

``PASSES`` serve every device. Those of ``FUSIONS`` follow where a program is made for a GPU: there our kernels do what
torch's operators would do one by one; on CPUs code generators fuse the same themselves.
"""

from collections.abc import Callable, Mapping
from typing import Final

from compiler.graph import Graph
from compiler.passes.attention import fuse_attention
from compiler.passes.batchnorm import fold_batchnorm
from compiler.passes.batchnorm_affine import expand_batchnorm
from compiler.passes.batchnorm_ahead import fold_batchnorm_ahead
from compiler.passes.constants import fold_constants
from compiler.passes.dead import remove_dead
from compiler.passes.fused_layernorm import fuse_layernorm
from compiler.passes.fused_linear import fuse_linear_act
from compiler.passes.identity import remove_identities
from compiler.passes.layout import lay_out
from compiler.passes.projections import merge_projections
from compiler.passes.repeated import merge_repeated
from compiler.passes.report import Change, PassReport, Reason, Refusal

__all__ = ["FUSIONS", "PASSES", "Change", "PassReport", "Reason", "Refusal", "run_passes"]

Pass = Callable[[Graph], tuple[Graph, PassReport]]

# Constants first: a weight that is computed from stored ones is as good as a stored one afterwards. Norms before what
# is repeated: a layer that two norms read could fold neither. Layout last.
PASSES: Final[tuple[Pass, ...]] = (
    remove_identities,
    fold_constants,
    fold_batchnorm,
    fold_batchnorm_ahead,
    expand_batchnorm,
    fuse_attention,
    merge_projections,
    merge_repeated,
    remove_dead,
    lay_out,
)
FUSIONS: Final[Mapping[str, tuple[Pass, ...]]] = {"cpu": (), "cuda": (fuse_layernorm, fuse_linear_act)}


def run_passes(graph: Graph, *, device: str = "cpu") -> tuple[Graph, tuple[PassReport, ...]]:
    """Run every pass once, in order, and those for a type of device."""
    reports: list[PassReport] = []
    for rewrite in (*PASSES, *FUSIONS[device]):
        graph, report = rewrite(graph)
        reports.append(report)
    return graph, tuple(reports)
