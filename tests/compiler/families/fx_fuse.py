"""What torch.fx's own ``fuse`` does on the families of norms: ``python -m tests.compiler.families.fx_fuse``.

It writes docs/families.md. A variant is *right* within the bound that this compiler is held to, *wrong* beyond it,
which nobody is told, and *crashes* where an exception comes out.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compiler.verification.reference import outputs_of, reference_of
from tests.compiler.families import norms
from tests.compiler.families.case import Case
from tests.compiler.families.judgement import ROWS, bound, largest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, which torch's own module uses (2.13)
    from torch.fx.experimental.optimization import fuse

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "families.md"
FAMILIES: Final[dict[str, Callable[[], Iterator[Case]]]] = {
    "a norm after a convolution": norms.after_convolutions,
    "a norm after a linear layer": norms.after_linear,
    "a norm before a layer": norms.before_layers,
    "a norm by itself": norms.alone,
    "shared, computed, written between": norms.shared_and_computed,
}
_HEAD: Final = """# Batch norms: this compiler beside torch.fx

Written by `python -m tests.compiler.families.fx_fuse`, with torch {torch}: every variant of `tests/compiler/families`
that has a batch norm, also those that only the soak compiles. *fx* is `torch.fx.experimental.optimization.fuse`. It is
**right** if its result is as near float64 as this compiler's has to be (twice eager execution's own error) at {rows}
rows, **wrong** if not, which nobody is told, or it **crashes**. *Here* all of them are right: the tests hold that, and
the reasons of those that are refused.

| family | variants | fx right | fx wrong | fx crashes | fx folds | folded here | a multiply-add here |
|---|---|---|---|---|---|---|---|
{table}

{total}

## Where fx is wrong or crashes

| variants | for example | fx | here |
|---|---|---|---|
{details}
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a variant: right, wrong or crashes; in which words; how many norms were folded."""

    kind: str
    detail: str = ""
    folded: int = 0


def outcome(case: Case) -> Outcome:
    """Fuse one variant by torch.fx and compare it with float64."""
    model = case.model()
    try:
        fused = fuse(case.model())
        assert isinstance(fused, fx.GraphModule), "it traces"
        error, allowed = _errors(case, model, fused)
    except Exception as failure:  # noqa: BLE001 (whatever comes out of it is the finding)
        return Outcome(kind="crashes", detail=f"{type(failure).__name__}: {str(failure).partition('. ')[0][:90]}")
    folded = _norms(fx.symbolic_trace(model)) - _norms(fused)
    if error <= allowed:
        return Outcome(kind="right", folded=folded)
    return Outcome(kind="wrong", detail=f"off by {error:.1e}, allowed {allowed:.1e}", folded=folded)


def _norms(traced: fx.GraphModule) -> int:
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    return sum(isinstance(traced.get_submodule(str(target)), _BatchNorm) for target in called)


def _errors(case: Case, model: nn.Module, fused: nn.Module) -> tuple[float, float]:
    exact = reference_of(model)
    error = eager_error = scale = 0.0
    for rows in ROWS:
        inputs = case.inputs(rows)
        reference = exact(inputs)
        error = max(error, largest(outputs_of(fused, inputs), reference))
        eager_error = max(eager_error, largest(outputs_of(model, inputs), reference))
        scale = max(scale, *(float(each.abs().max()) for each in reference))
    return error, bound(case, eager_error, scale)


def page() -> str:
    """The page, measured now."""
    table, grouped = [], defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for family, cases in FAMILIES.items():
        found = {case: outcome(case) for case in {case.name: case for case in cases()}.values()}
        kinds = [each.kind for each in found.values()]
        here = [sum(case.fused.get(name, 0) for case in found) for name in (norms.AFTER, norms.AHEAD, norms.AFFINE)]
        row = (family, len(found), *(kinds.count(kind) for kind in ("right", "wrong", "crashes")))
        table.append((*row, sum(each.folded for each in found.values()), here[0] + here[1], here[2]))
        for case, each in found.items():
            counts[each.kind] += 1
            if each.kind != "right":
                grouped[each.detail if each.kind == "crashes" else case.name].append((case, each))
    details = [_detail(group) for group in grouped.values()]
    total = f"Of {sum(counts.values())}: " + ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts)) + "."
    return _HEAD.format(
        torch=torch.__version__.partition("+")[0],
        rows=", ".join(map(str, ROWS)),
        table="\n".join(f"| {' | '.join(map(str, row))} |" for row in table),
        total=total,
        details="\n".join(details),
    )


def _detail(group: list[tuple[Case, Outcome]]) -> str:
    case, found = group[0]
    here = ", ".join([*case.fused, *(f"{reason} ({name})" for name, reason in case.refused)])
    return f"| {len(group)} | {case.name} | {found.kind}: {found.detail} | {here} |"


def main() -> None:
    """Write the page."""
    torch.set_num_threads(1)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
