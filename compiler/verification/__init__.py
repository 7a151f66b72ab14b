"""Verification: a compiled program against its model in float64, before anything is packaged.

    error(compiled) ≤ 4 · error(eager) + min(32 · ε, 1/64) · max|reference|

``error`` is the largest absolute difference from the model run in float64; ``eager`` is the model as it is. The bound
is free of scale and of element type: it forgives a different order of sums and catches a wrong fold. Its second term is
for inputs on which eager happens to be almost exact: with 8 · ε there, a right program came to 84 % of the bound. Where
both the model and its reference are NaN, or infinite with one sign, the program has to be so, too.

It is checked at several sizes of every dynamic dimension, on inputs that provoke mistakes, on every backend the program
can run on, and again with a second checkpoint in which every weight is changed, fed through the formulas: a constant
that a backend baked into its code gives itself away there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from compiler.definition import Definition
from compiler.dynamic import resize
from compiler.errors import VerificationError
from compiler.report import Figure
from compiler.verification.inputs import KINDS, sizes_to_try
from compiler.verification.perturbation import perturb
from compiler.verification.reference import outputs_of, reference_of

__all__ = ["Bind", "confirm", "verify"]

FACTOR: Final = 4.0
EPSILONS: Final = 32.0
SLACK: Final = 1 / 64
_FEW: Final = 2  # rows: one would hide a mistaken broadcast

Bind = Callable[[Mapping[str, Tensor], str], Callable[..., Sequence[Tensor]]]


def verify(
    definition: Definition, *, model: nn.Module, example_inputs: Sequence[Tensor], bind: Bind, backends: Sequence[str]
) -> tuple[Figure, ...]:
    """Compare on every backend, checkpoint, size and kind of input.

    Args:
        definition: What was compiled.
        model: What it was compiled from.
        example_inputs: Plausible inputs; resized and varied here.
        bind: (checkpoint tensors, backend) → a runner of the compiled program, or what answers as one.
        backends: Names to try.

    Raises:
        VerificationError: At least one comparison is out of bounds; it names the worst.
    """
    figures: list[Figure] = []
    for checkpoint, subject in (("given", model), ("perturbed", perturb(model))):
        state = subject.state_dict()
        runners = {backend: bind(state, backend) for backend in backends}
        exact = reference_of(subject)
        for sizes, kind, inputs in _inputs(definition, example_inputs):
            eager, reference = outputs_of(subject, inputs), exact(inputs)
            for backend, runner in runners.items():
                error, eager_error, bound = _worst(runner(*inputs), eager, reference)
                figures.append(
                    Figure(
                        backend=backend,
                        checkpoint=checkpoint,
                        inputs=kind,
                        sizes=sizes,
                        error=error,
                        eager_error=eager_error,
                        bound=bound,
                    )
                )
    _judge(figures)
    return tuple(figures)


def confirm(
    definition: Definition,
    *,
    model: nn.Module,
    example_inputs: Sequence[Tensor],
    runner: Callable[..., Sequence[Tensor]],
) -> None:
    """Compare a program that was verified before with a model of the same graph: on the example, in small batches.

    float64 is asked only where eager execution does not settle it: what is within the bound's second term of eager is
    within the bound of float64, by the triangle inequality.

    Args:
        definition, model, example_inputs: As for ``verify``.
        runner: The program, bound to the model's weights.

    Raises:
        VerificationError: It is out of bounds.
    """
    sizes = {dim.name: min(max(dim.min, _FEW), dim.max) for dim in definition.dims}
    inputs = _resized(definition, example_inputs, sizes)
    found, eager = runner(*inputs), outputs_of(model, inputs)
    error, eager_error, bound = _worst(found, eager, eager)
    if error > bound:
        error, eager_error, bound = _worst(found, eager, reference_of(model)(inputs))
    figure = Figure(
        backend="recalled",
        checkpoint="given",
        inputs="example",
        sizes=sizes,
        error=error,
        eager_error=eager_error,
        bound=bound,
    )
    _judge([figure])


def _resized(definition: Definition, example_inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> list[Tensor]:
    dims = {dim.name: dim for dim in definition.dims}
    axes = [{axis: dims[dim] for axis, dim in enumerate(spec.dims) if dim} for spec in definition.inputs]
    return [resize(tensor, at, sizes) for tensor, at in zip(example_inputs, axes, strict=True)]


def _inputs(
    definition: Definition, example_inputs: Sequence[Tensor]
) -> Iterator[tuple[dict[str, int], str, list[Tensor]]]:
    generator = torch.Generator().manual_seed(0)
    for sizes in sizes_to_try(definition.dims):
        resized = _resized(definition, example_inputs, sizes)
        for kind, vary in KINDS.items():
            yield sizes, kind, [vary(tensor, generator) for tensor in resized]


def _worst(found: Sequence[Tensor], eager: Sequence[Tensor], reference: Sequence[Tensor]) -> tuple[float, float, float]:
    """(error, eager's error, bound) of the output that uses most of its bound."""
    measured = [_measure(*outputs) for outputs in zip(found, eager, reference, strict=True)]
    return max(measured, key=lambda entry: entry[0] / max(entry[2], 1e-300))


def _measure(found: Tensor, eager: Tensor, reference: Tensor) -> tuple[float, float, float]:
    if found.shape != reference.shape or found.dtype != eager.dtype:
        return float("inf"), 0.0, 0.0
    if not _is_unbounded_alike(found, eager.double(), reference.double()):
        return float("inf"), 0.0, 0.0
    finite = torch.isfinite(eager) & torch.isfinite(reference)  # where only one of both overflows nothing is judged
    scale = _largest(reference[finite].double().abs())
    eager_error = _largest((eager.double() - reference.double())[finite].abs())
    error = _largest((found.double() - reference.double())[finite].abs())
    epsilon = torch.finfo(eager.dtype).eps if eager.is_floating_point() else 0.0
    return error, eager_error, FACTOR * eager_error + min(EPSILONS * epsilon, SLACK) * scale


def _is_unbounded_alike(found: Tensor, eager: Tensor, reference: Tensor) -> bool:
    """Whether it is NaN, or infinite, wherever both others agree that it should."""
    agreed = ~torch.isfinite(eager) & torch.isclose(eager, reference, rtol=0.0, atol=0.0, equal_nan=True)
    return torch.allclose(found.double()[agreed], eager[agreed], rtol=0.0, atol=0.0, equal_nan=True)


def _largest(values: Tensor) -> float:
    """The maximum, 0 of nothing, infinity where there is a NaN."""
    return float(values.nan_to_num(nan=float("inf"), posinf=float("inf")).max()) if values.numel() else 0.0


def _judge(figures: Sequence[Figure]) -> None:
    failed = [figure for figure in figures if not figure.passed]
    if not failed:
        return
    worst = max(failed, key=lambda figure: figure.error / max(figure.bound, 1e-300))
    sizes = ", ".join(f"{dim}={size}" for dim, size in worst.sizes.items()) or "static sizes"
    raise VerificationError(
        worst=f"backend {worst.backend!r}, {worst.checkpoint} checkpoint, {worst.inputs} inputs, {sizes}",
        error=worst.error,
        bound=worst.bound,
        failures=len(failed),
    )
