"""``compile``: capture → passes → lowering → build → verification, or an error and nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from torch import Tensor, nn

from compiler import cache as packages
from compiler import encode
from compiler.backends import find_backend
from compiler.backends.target import Target
from compiler.capture import capture
from compiler.definition import Definition
from compiler.dynamic import Dynamic
from compiler.lowering import lower
from compiler.passes import run_passes
from compiler.program import Program
from compiler.report import Report
from compiler.runner import Runner
from compiler.validation import validate
from compiler.verification import verify

Progress = Callable[[str, float], None]

_REFERENCE: Final = "eager"


def compile(
    model: nn.Module,
    example_inputs: Sequence[Tensor],
    *,
    dynamic: Dynamic | None = None,
    backend: str = "aoti",
    progress: Progress | None = None,
    cache: str | Path | None = None,
) -> Program:
    """Turn a model into a verified program.

    Args:
        model: In evaluation mode, on the CPU; read, never changed.
        example_inputs: One plausible tensor per argument of ``forward``.
        dynamic: Input name → axis → ``Dim``. Other axes keep their size: ``{"x": {0: Dim(name="batch", max=64)}}``.
        backend: A key of ``compiler.backends.BACKENDS``: ``"aoti"`` (native code, 10 to 20 s) or ``"eager"``.
        progress: Called as (stage, share of the whole that is done, 0 to 1).
        cache: A folder of packages; a graph that was built before, with the same flags and versions, is not built
            again, only verified with this model's weights. It holds native code: keep it as safe as the code itself.

    Returns:
        A program whose ``report`` says what was folded, what was refused and why, and every verification figure.

    Raises:
        CaptureError, DynamicShapeError: The model or the inputs do not fit.
        BackendError: Unknown, refused, or its build failed.
        VerificationError: The result strays from float64 by more than rounding explains.
    """
    tell = progress or (lambda stage, done: None)
    tell("capture", 0.0)
    graph = capture(model, example_inputs, dynamic=dynamic)
    tell("fold", 0.1)
    graph, passes = run_passes(graph)
    definition = lower(graph)
    validate(definition)
    tell("build", 0.2)
    package = _package(definition, backend=backend, cache=None if cache is None else Path(cache))
    program = _program(definition, backend=backend, package=package, report=Report(passes=passes, figures=()))
    tell("verify", 0.8)
    figures = verify(
        definition,
        model=model,
        example_inputs=example_inputs,
        bind=_binder(program),
        backends=(_REFERENCE,) if backend == _REFERENCE else (_REFERENCE, backend),
    )
    tell("done", 1.0)
    return replace(program, report=Report(passes=passes, figures=figures))


def _package(definition: Definition, *, backend: str, cache: Path | None) -> bytes | None:
    chosen = find_backend(backend)
    chosen.refuse(definition)
    if cache is None:
        return chosen.build(definition)
    key = packages.entry_key(digest=encode.digest(definition), backend=backend, build_key=chosen.build_key())
    found = packages.find(cache, key)
    if found is not None:
        return found
    built = chosen.build(definition)
    if built is not None:
        packages.store(cache, key, built)
    return built


def _program(definition: Definition, *, backend: str, package: bytes | None, report: Report) -> Program:
    if package is None:
        return Program(definition=definition, backend=backend, targets=(), packages={}, report=report)
    chosen = find_backend(backend)
    target = Target.describe(package, backend=backend, requirement=chosen.requirement, suffix=chosen.suffix)
    return Program(
        definition=definition, backend=backend, targets=(target,), packages={target.path: package}, report=report
    )


def _binder(program: Program) -> Callable[[Mapping[str, Tensor], str], Runner]:
    def bind(tensors: Mapping[str, Tensor], backend: str) -> Runner:
        return program.bind(tensors, backend=backend)

    return bind
