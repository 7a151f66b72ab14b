"""A group of variants compiled as one model, and what each has to answer: fused or refused as stated, and right.

Variants are compiled a few dozen at a time, as parts of one model that share nothing: nearly all the time goes into
``torch.export``. What a pass says of a variant is told by the site, which begins with the name of its part. Batches of
1, 2, 7 and the largest take turns; some of each family are compiled with a dynamic batch and run at all of them.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import compiler
from compiler.capture import capture
from compiler.lowering import lower
from compiler.passes import PassReport, run_passes
from compiler.program import Program
from compiler.report import Report
from compiler.validation import validate
from compiler.verification.reference import outputs_of, reference_of
from tests.compiler.families.case import BATCH, Case
from tests.compiler.families.catalogue import ALL

GROUP = 32
ROWS = (1, 2, 7, BATCH)
TIDYING = ("remove_identities", "merge_repeated", "remove_dead", "lay_out")


class Parts(nn.Module):
    """Models side by side, each with inputs and outputs of its own."""

    def __init__(self, cases: tuple[Case, ...]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(case.model() for case in cases)
        self.counts = [len(case.shapes) for case in cases]

    def forward(self, *inputs: Tensor) -> list[object]:
        outputs, start = [], 0
        for part, count in zip(self.parts, self.counts, strict=True):
            outputs.append(part(*inputs[start : start + count]))
            start += count
        return outputs


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A group as a program, and its outputs: (case, rows) → tensors."""

    passes: tuple[PassReport, ...]
    outputs: dict[tuple[Case, int], list[Tensor]]


@cache
def compiled(cases: tuple[Case, ...], *, dynamic: bool) -> Compiled:
    """What ``compiler.compile`` makes of a group, before it verifies: here the tests do."""
    model = Parts(cases).eval()
    examples = inputs_of(cases, [3 if dynamic else rows_of(case) for case in cases])
    batch = compiler.Dim(name="batch", max=BATCH)
    dims = {f"inputs_{index}": {0: batch} for index in range(len(examples))} if dynamic else None
    graph, passes = run_passes(capture(model, examples, dynamic=dims))
    definition = lower(graph)
    validate(definition)
    report = Report(passes=passes, figures=())
    program = Program(definition=definition, backend="eager", targets=(), packages={}, report=report)
    runner = program.bind(model.state_dict())
    counts = [len(pytree.tree_leaves(outputs)) for outputs in model(*examples)]
    outputs = {}
    for turn in [[rows] * len(cases) for rows in ROWS] if dynamic else [[rows_of(case) for case in cases]]:
        parts = iter(runner(*inputs_of(cases, turn)))
        for case, rows, count in zip(cases, turn, counts, strict=True):
            outputs[case, rows] = [next(parts) for _ in range(count)]
    return Compiled(passes=tuple(each for each in passes if each.name not in TIDYING), outputs=outputs)


def rows_of(case: Case) -> int:
    return ROWS[ALL.index(case) % len(ROWS)]


def inputs_of(cases: tuple[Case, ...], rows: list[int]) -> list[Tensor]:
    return [each for case, count in zip(cases, rows, strict=True) for each in case.inputs(count)]


def judge(case: Case, here: Compiled, *, place: int, rows: tuple[int, ...]) -> None:
    """The passes did what the variant states, and its results are as near float64 as they must be."""
    fused = {entry.name: sum(at(place, change.site) for change in entry.changes) for entry in here.passes}
    assert {name: count for name, count in fused.items() if count} == case.fused
    found = [(entry.name, each.reason) for entry in here.passes for each in entry.refusals if at(place, each.site)]
    assert tuple(found) == case.refused

    model = case.model()
    exact = reference_of(model)
    error = eager_error = scale = 0.0
    for count in rows:
        inputs = case.inputs(count)
        reference = exact(inputs)
        error = max(error, largest(here.outputs[case, count], reference))
        eager_error = max(eager_error, largest(outputs_of(model, inputs), reference))
        scale = max(scale, *(float(each.abs().max()) for each in reference))
    assert scale > 0
    assert error <= bound(case, eager_error, scale)


def bound(case: Case, eager_error: float, scale: float) -> float:
    """How far from float64 a result may be."""
    return case.factor * eager_error + 2 * torch.finfo(case.dtype).eps * scale


def at(place: int, site: str) -> bool:
    return site == f"parts.{place}" or site.startswith(f"parts.{place}.")


def largest(found: list[Tensor], exact: list[Tensor]) -> float:
    return max(float((one.double() - other.double()).abs().max()) for one, other in zip(found, exact, strict=True))
