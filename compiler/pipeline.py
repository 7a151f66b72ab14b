"""``compile``: capture → passes → lowering → build → verification, or an error and nothing.

With a cache, what was compiled before is recalled first, and what was built before is not built again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from compiler import recall, rendering
from compiler.backends import find_backend
from compiler.backends.target import Target
from compiler.cache import Cache, entry_key
from compiler.capture import capture
from compiler.dynamic import Dynamic
from compiler.errors import UnsupportedOperatorError
from compiler.graph import Graph
from compiler.lowering import lower
from compiler.passes import run_passes
from compiler.program import Program
from compiler.report import Drawing, Report
from compiler.runner import Runner
from compiler.validation import validate
from compiler.verification import Bind, verify

Progress = Callable[[str, float], None]

_REFERENCE: Final = "eager"
GPU: Final = "cuda"


def compile(
    model: nn.Module,
    example_inputs: Sequence[Tensor],
    *,
    dynamic: Dynamic | None = None,
    backend: str = "aoti",
    targets: Sequence[str] = (),
    progress: Progress | None = None,
    cache: str | Path | None = None,
) -> Program:
    """Turn a model into a verified program.

    Args:
        model: In evaluation mode, on the CPU; read, never changed.
        example_inputs: One plausible tensor per argument of ``forward``.
        dynamic: Input name → axis → ``Dim``. Other axes keep their size: ``{"x": {0: Dim(name="batch", max=64)}}``.
        backend: A key of ``compiler.backends.BACKENDS``: ``"aoti"`` (native code, 10 to 20 s) or ``"eager"``.
        targets: What to build packages for, if not for the backend's own default: ``"x86-64-v3"`` and ``"native"`` (all
            that this CPU has) for ``"aoti"``. A runner takes the one that is nearest to its machine. ``"cuda"`` for
            ``"eager"`` has the graph made of our kernels, where they do what several operators would.
        progress: Called as (stage, share of the whole that is done, 0 to 1).
        cache: A folder of programs and packages. A model of the same code, attributes and versions is not traced again:
            its program is compared with this model's weights and handed out. Another model of the same graph is not
            built again. ``report.cache`` says which it was, and why. It holds native code: keep it as safe as the code
            itself.

    Returns:
        A program whose ``report`` says what was folded, what was refused and why, and every verification figure.

    Raises:
        CaptureError, DynamicShapeError: The model or the inputs do not fit.
        BackendError: Unknown, refused, or its build failed.
        VerificationError: The result strays from float64 by more than rounding explains.
    """
    tell = progress or (lambda stage, done: None)
    kept = None if cache is None else Cache(folder=Path(cache))
    key = program = None
    if kept is not None:
        tell("recall", 0.0)
        asked = [_plain(dynamic or {}), backend, list(targets), _builds(backend, targets)]
        key = recall.key_of(model, example_inputs, asked=asked, cache=kept)
        program = key and recall.find(key, model=model, example_inputs=example_inputs, cache=kept)
    if not program:
        program = _compile(
            model, example_inputs, dynamic=dynamic, backend=backend, targets=targets, tell=tell, cache=kept
        )
        if kept is not None and key:
            recall.store(key, program, cache=kept)
    tell("done", 1.0)
    return replace(program, report=replace(program.report, cache="; ".join(kept.notes) if kept else ""))


def _plain(dynamic: Dynamic) -> dict[str, dict[int, str]]:
    return {name: {axis: repr(dim) for axis, dim in axes.items()} for name, axes in dynamic.items()}


def _builds(backend: str, targets: Sequence[str]) -> list[tuple[str, str]]:
    """For each target what it needs, spelled out, and with what it is built."""
    chosen = find_backend(backend)
    needs = [chosen.resolve(asked) for asked in targets or (chosen.requirement,)]
    return [(need, chosen.build_key(requirement=need)) for need in needs]


def _compile(
    model: nn.Module,
    example_inputs: Sequence[Tensor],
    *,
    dynamic: Dynamic | None,
    backend: str,
    targets: Sequence[str],
    tell: Progress,
    cache: Cache | None,
) -> Program:
    tell("capture", 0.0)
    graph = capture(model, example_inputs, dynamic=dynamic)
    captured = _drawn(graph)
    tell("fold", 0.1)
    graph, passes = run_passes(graph, device=GPU if GPU in targets else "cpu")
    definition = find_backend(backend).arrange(lower(graph))
    validate(definition)
    tell("build", 0.2)
    report = Report(passes=passes, figures=(), captured=captured)
    program = Program(definition=definition, backend=backend, targets=(), packages={}, report=report)
    for asked in targets or (find_backend(backend).requirement,):
        program = _with_target(program, asked, cache=cache)
    tell("verify", 0.8)
    figures = verify(
        definition,
        model=model,
        example_inputs=example_inputs,
        bind=_binder(program),
        backends=(_REFERENCE, *_names(program), *((GPU,) if GPU in targets and torch.cuda.is_available() else ())),
    )
    return replace(program, report=replace(report, figures=figures))


def _drawn(graph: Graph) -> Drawing:
    """The graph before the passes; what no program can state may still fold away, and is told here."""
    try:
        return rendering.draw(lower(graph), name="captured")
    except UnsupportedOperatorError as error:
        return Drawing(text=f"# {error}\n", dot="")


def _with_target(program: Program, asked: str, *, cache: Cache | None) -> Program:
    """The program with a package for what was asked, if its backend makes any."""
    chosen = find_backend(program.backend)
    requirement = chosen.resolve(asked)
    chosen.refuse(program.definition, requirement=requirement)
    package = _package(program, requirement=requirement, cache=cache)
    if package is None:
        return program
    target = Target.describe(package, backend=program.backend, requirement=requirement, suffix=chosen.suffix)
    others = tuple(other for other in program.targets if other.path != target.path)
    return replace(program, targets=(*others, target), packages={**program.packages, target.path: package})


def _package(program: Program, *, requirement: str, cache: Cache | None) -> bytes | None:
    chosen = find_backend(program.backend)
    if cache is None:
        return chosen.build(program.definition, requirement=requirement)
    key = entry_key(
        digest=program.digest,
        backend=program.backend,
        requirement=requirement,
        build_key=chosen.build_key(requirement=requirement),
    )
    found = cache.find(key)
    if found is not None:
        return found
    built = chosen.build(program.definition, requirement=requirement)
    if built is not None:
        cache.store(key, built)
    return built


def _names(program: Program) -> dict[str, Target]:
    """What verification calls each package: by its backend, and where there are several by what it needs, too."""
    if len(program.targets) == 1:
        return {program.backend: program.targets[0]}
    return {f"{program.backend} {target.requirement}": target for target in program.targets}


def _binder(program: Program) -> Bind:
    names = _names(program)

    def bind(tensors: Mapping[str, Tensor], name: str) -> Callable[..., Sequence[Tensor]]:
        if name == GPU:
            return _there_and_back(program.bind(tensors, device=torch.device(GPU)))
        if name == _REFERENCE:
            return program.bind(tensors, backend=_REFERENCE)
        return replace(program, targets=(names[name],)).bind(tensors)

    return bind


def _there_and_back(runner: Runner) -> Callable[..., Sequence[Tensor]]:
    """A runner on a GPU, asked from the CPU."""
    return lambda *inputs: [output.cpu() for output in runner(*(tensor.to(GPU) for tensor in inputs))]
