"""Forward passes of larger models on two threads, and new weights for one that is bound.

Shapes are static on every side, and what a side derives from weights (folded norms, packed layouts) is derived before
the clock starts. ``resnet18`` takes images in the order in which they come, channels first.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch._inductor.config
from torch import Tensor, nn

import compiler
from benchmarks.cases.resnet import IMAGE, resnet18
from benchmarks.plan import Call
from recipes import bert

THREADS = 2
WARM_UP = 3
PROGRAM, CACHE, INDUCTOR, PEER = "program", "cache", "inductor", "peer.onnx"
WORDS = (8, 128)  # rows, tokens
IMAGES = 4


class Tiny(nn.Module):
    """What quick runs have in place of a model: one folded convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, 2)."""
        logits: Tensor = self.head(self.body(image).mean((2, 3)))
        return logits


@contextmanager
def prepare(*, work: Path, shared: Path, model: str, backend: str) -> Iterator[Call]:
    """The program, saved."""

    def fill() -> None:
        program = compiler.compile(build(model, seed=0), example(model), backend=backend)
        program.save(shared / PROGRAM)

    yield Call(run=fill)


def build(model: str, *, seed: int) -> nn.Module:
    """A model with weights of its own for each seed; MiniLM has its published ones."""
    torch.set_num_threads(THREADS)
    if model == "minilm":
        return bert.published().eval()
    if model == "resnet18":
        return resnet18(seed)
    torch.manual_seed(seed)
    return Tiny().eval()


def example(model: str) -> tuple[Tensor, ...]:
    """The batch that is asked."""
    generator = torch.Generator().manual_seed(1)
    if model == "minilm":
        return (torch.randint(1, bert.WORDS, WORDS, generator=generator),)
    size = IMAGE if model == "resnet18" else (3, 8, 8)
    return (torch.randn(IMAGES, *size, generator=generator),)


@contextmanager
def prepare_recalled(*, work: Path, shared: Path, model: str, backend: str) -> Iterator[Call]:
    """The program, kept in a cache."""
    yield Call(run=_compile(model, backend=backend, cache=shared / CACHE))


@contextmanager
def recalled(*, work: Path, shared: Path, model: str, backend: str, earlier: int) -> Iterator[Call]:
    """``compile`` of what a cache has, after ``earlier`` calls in the same process."""
    compile_again = _compile(model, backend=backend, cache=shared / CACHE)
    for _ in range(earlier):
        compile_again()
    programs: list[compiler.Program] = []
    yield Call(run=lambda: programs.append(compile_again()))
    if not programs[0].report.cache.startswith("recalled"):
        raise AssertionError(f"nothing was recalled: {programs[0].report.cache}")


def _compile(model: str, *, backend: str, cache: Path) -> Callable[[], compiler.Program]:
    module, inputs = build(model, seed=0), example(model)
    name = next(iter(inspect.signature(module.forward).parameters))
    dynamic = {name: {0: compiler.Dim(name="rows", max=len(inputs[0]))}}
    return partial(compiler.compile, module, inputs, dynamic=dynamic, backend=backend, cache=cache)


@contextmanager
def program(*, work: Path, shared: Path, model: str, calls: int) -> Iterator[Call]:
    """The saved program, bound to the model's weights."""
    runner = compiler.load(shared / PROGRAM).bind(build(model, seed=0).state_dict())
    yield _calls(runner, model, calls=calls)


@contextmanager
def eager(*, work: Path, shared: Path, model: str, calls: int, channels_last: bool = False) -> Iterator[Call]:
    """The module itself; with ``channels_last`` its weights and its input are laid out so before the clock starts."""
    module, inputs = build(model, seed=0), example(model)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = tuple(tensor.contiguous(memory_format=torch.channels_last) for tensor in inputs)
    yield _calls(module, model, calls=calls, inputs=inputs)


@contextmanager
def torch_compile(*, work: Path, shared: Path, model: str, calls: int, freezing: bool) -> Iterator[Call]:
    """``torch.compile``; with freezing the weights are folded, packed and fixed."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(shared / INDUCTOR)
    torch.compiler.reset()  # in a quick run an earlier side has compiled the same code
    with torch._inductor.config.patch(freezing=freezing):
        yield _calls(torch.compile(build(model, seed=0), dynamic=False), model, calls=calls)


@contextmanager
def onnx_runtime(*, work: Path, shared: Path, model: str, calls: int) -> Iterator[Call]:
    """ONNX Runtime on what ``torch.onnx.export`` writes, with all of its optimisations."""
    import onnxruntime  # an extra

    file = shared / PEER
    inputs = example(model)
    if not file.exists():
        torch.onnx.export(build(model, seed=0), inputs, file, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def ask(*tensors: Tensor) -> object:
        return session.run(None, dict(zip(names, (tensor.numpy() for tensor in tensors), strict=True)))

    yield _calls(ask, model, calls=calls, inputs=inputs)


@contextmanager
def rebind(*, work: Path, shared: Path, model: str, calls: int) -> Iterator[Call]:
    """Every formula evaluated from another checkpoint, in place."""
    program = compiler.load(shared / PROGRAM)
    states = [build(model, seed=seed).state_dict() for seed in (1, 2)]
    runner = program.bind(states[0])
    yield Call(run=_alternating(lambda state: program.rebind(state, runner), states, calls=calls), units=calls)


@contextmanager
def load_state_dict(*, work: Path, shared: Path, model: str, calls: int) -> Iterator[Call]:
    """The same tensors copied into the module, where nothing is folded."""
    module = build(model, seed=0)
    states = [build(model, seed=seed).state_dict() for seed in (1, 2)]
    yield Call(run=_alternating(module.load_state_dict, states, calls=calls), units=calls)


def _alternating(
    take: Callable[[dict[str, Tensor]], object], states: list[dict[str, Tensor]], *, calls: int
) -> Callable[[], None]:
    for state in states:
        take(state)

    def run() -> None:
        for number in range(calls):
            take(states[number % len(states)])

    return run


def _calls(ask: Callable[..., object], model: str, *, calls: int, inputs: tuple[Tensor, ...] | None = None) -> Call:
    batch = example(model) if inputs is None else inputs

    def run(count: int = calls) -> None:
        with torch.no_grad():
            for _ in range(count):
                ask(*batch)

    run(WARM_UP)
    return Call(run=run, units=calls)
