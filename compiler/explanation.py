"""A program explained: for people as text, for tools as plain values that JSON can hold."""

from typing import Any, Final

from compiler import rendering
from compiler.program import Program
from compiler.report import Figure

FORMS: Final = ("text", "dot")
_SHOWN_CHANGES: Final = 8


def as_values(program: Program) -> dict[str, Any]:
    """The whole report and the program's outline."""
    plan = program.memory_plan()
    return {
        "digest": program.digest,
        "backend": program.backend,
        "inputs": [_line(spec.name, spec.dtype, spec.shape) for spec in program.inputs],
        "outputs": [_line(spec.name, spec.dtype, spec.shape) for spec in program.outputs],
        "dims": {dim.name: [dim.min, dim.max] for dim in program.definition.dims},
        "operators": len(program.definition.nodes),
        "arena_bytes": program.arena_bytes,
        "memory_plan": {
            "sizes": dict(plan.sizes),
            "values": len(plan.lifetimes),
            "total_bytes": plan.total_bytes,
            "arena_bytes": plan.arena_bytes,
            "lower_bound_bytes": plan.lower_bound_bytes,
        },
        "constants": [
            {**_line(entry.name, entry.dtype, entry.shape), "formula": str(entry.formula)}
            for entry in program.constants
        ],
        "targets": [
            {
                "backend": target.backend,
                "requirement": target.requirement,
                "torch": target.torch_version,
                "path": target.path,
                "size_bytes": target.size_bytes,
                "sha256": target.sha256,
            }
            for target in program.targets
        ],
        "passes": [
            {
                "name": entry.name,
                "changes": [{"site": change.site, "what": change.what} for change in entry.changes],
                "refusals": [
                    {"site": refusal.site, "reason": refusal.reason.value, "detail": refusal.detail}
                    for refusal in entry.refusals
                ],
            }
            for entry in program.report.passes
        ],
        "figures": [_figure(figure) for figure in program.report.figures],
    }


def as_graphs(program: Program, form: str) -> str:
    """The graph before the passes and after them, in one of the forms of ``FORMS``.

    A program of a version that did not keep the first has the second alone; Graphviz takes both in one file.
    """
    drawings = [("before", program.report.captured), ("after", rendering.draw(program.definition, name="program"))]
    if form == "dot":
        return "".join(drawing.dot for _, drawing in drawings if drawing is not None)
    return "\n".join(f"# {when} the passes\n{drawing.text}" for when, drawing in drawings if drawing is not None)


def as_text(program: Program) -> str:
    """What was done, what was refused and why, and how near to float64 the result is."""
    lines = [
        f"program {program.digest}",
        f"  backend {program.backend}, {len(program.definition.nodes)} operators, "
        f"{len(program.constants)} constants in {program.arena_bytes} bytes",
    ]
    lines += [
        f"  target {target.path}: {target.size_bytes} bytes, {target.requirement}, torch {target.torch_version}"
        for target in program.targets
    ]
    plan = program.memory_plan()
    lines.append(
        f"  memory between operators at the largest sizes: {plan.arena_bytes} bytes in one arena, "
        f"at least {plan.lower_bound_bytes}, {plan.total_bytes} without reuse"
    )
    for entry in program.report.passes:
        lines.append(f"{entry.name}: {len(entry.changes)} changes, {len(entry.refusals)} refused")
        lines += [f"  {change.site}: {change.what}" for change in entry.changes[:_SHOWN_CHANGES]]
        if len(entry.changes) > _SHOWN_CHANGES:
            lines.append(f"  … and {len(entry.changes) - _SHOWN_CHANGES} more (--json lists all)")
        lines += [f"  {refusal.site}: refused ({refusal.reason}): {refusal.detail}" for refusal in entry.refusals]
    lines.append("formulas:")
    lines += [f"  {entry.name} = {entry.formula}" for entry in program.constants]
    lines.append(f"verification: {len(program.report.figures)} comparisons with float64")
    worst = program.report.worst
    if worst is not None:
        sizes = ", ".join(f"{dim}={size}" for dim, size in worst.sizes.items()) or "static sizes"
        lines.append(
            f"  nearest to its bound: {worst.backend}, {worst.checkpoint} checkpoint, {worst.inputs} inputs, {sizes}: "
            f"error {worst.error:.3g}, eager {worst.eager_error:.3g}, bound {worst.bound:.3g}"
        )
    return "\n".join(lines) + "\n"


def _line(name: str, dtype: str, shape: tuple[int | None, ...]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "backend": figure.backend,
        "checkpoint": figure.checkpoint,
        "inputs": figure.inputs,
        "sizes": dict(figure.sizes),
        "error": figure.error,
        "eager_error": figure.eager_error,
        "bound": figure.bound,
    }
