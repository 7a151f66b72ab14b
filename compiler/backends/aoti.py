"""The aoti backend: AOTInductor code for one instruction set, with every constant outside the code.

Measured on torch 2.13, each a reason for a line below:
- constants of ≤ 8 elements are baked into the code unless ``always_keep_tensor_constants`` is set, and an update is
  then silently ignored; the names of the constants are asserted after compiling;
- the loader starts in 2 ms and without a compiler only as ``AOTIModelPackageLoader``; it checks nothing, so ``Runner``
  does;
- it unpacks into ``$TMPDIR`` and leaks that when killed: it gets a scratch folder that is removed at once (the code
  stays mapped), and folders that a kill left behind are removed after a day;
- precompiled headers and probing the host's instruction sets cost 19 of 32 s and gain nothing for one compilation;
- the number of threads is baked in unless ``cpp.dynamic_threads`` is set;
- a dynamic dimension may be specialised without a word: a package is asked at both ends of every dimension at once;
- the code keeps a reference to each tensor that it was ever bound to, so what is packed is packed in place;
- the weights of convolutions are packed when constants are bound, and the package says by their names whether it was
  compiled for that.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch._inductor.config
from torch import Tensor, nn

from compiler import dtypes
from compiler.backends import instruction_sets, packed_convolutions, separate_biases
from compiler.backends.packed_convolutions import Convolution, PackedWeights
from compiler.backends.target import Target, torch_version
from compiler.definition import Definition
from compiler.dynamic import trace_sizes
from compiler.errors import BackendRefusedError, BuildError
from compiler.interpreter import Interpreter
from compiler.runner import Engine

OPTIONS: Final[Mapping[str, Any]] = {
    "aot_inductor.package_constants_in_so": False,
    "always_keep_tensor_constants": True,
    "cpp.simdlen": 256,
    "cpp.march": instruction_sets.BASE,
    "cpp.vec_isa_ok": True,
    "cpp.dynamic_threads": True,
    "compile_threads": 1,
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
}

_LOWERING: Final = "packed convolutions, separate biases"
_SCRATCH_PREFIX: Final = "treering-aoti-"
_SCRATCH_AGE_S: Final = 86_400.0
_ENVIRONMENT = threading.Lock()


class AotiBackend:
    """Needs a C++ compiler to build, and the torch version that built a package to load it."""

    requirement = instruction_sets.BASE
    suffix = ".pt2"
    devices = ("cpu",)

    def resolve(self, asked: str) -> str:
        """``native`` as what this machine has."""
        return instruction_sets.requirement_here(asked)

    def choose(self, targets: Sequence[Target]) -> Target | None:
        """Of those that this machine can run the nearest to it; the first, to be refused with a reason, of none."""
        fitting = [target for target in targets if not instruction_sets.lacks(target.requirement)]
        nearest = max(fitting, key=lambda target: instruction_sets.extensions(target.requirement), default=None)
        return nearest or next(iter(targets), None)

    def refuse(self, definition: Definition, *, requirement: str) -> None:
        """Refuse machines without a C++ compiler or the instruction set, and torch without the options needed."""
        _refuse_machine(requirement)
        if requirement not in (instruction_sets.BASE, instruction_sets.requirement_here(instruction_sets.NATIVE)):
            raise BackendRefusedError(
                backend="aoti",
                reason=f"it builds for {instruction_sets.BASE} or for all that this CPU has, not for {requirement}",
                next_step=f"Ask for '{instruction_sets.BASE}' or '{instruction_sets.NATIVE}'.",
            )
        unknown = sorted(OPTIONS.keys() - torch._inductor.config.get_config_copy().keys())
        if unknown:
            raise BackendRefusedError(
                backend="aoti",
                reason=f"torch {torch_version()} has no option {', '.join(unknown)}, so its code could not be pinned",
                next_step="Use torch 2.13, or backend='eager'.",
            )
        if not _is_plain(Path(torch.__file__)):
            raise BackendRefusedError(
                backend="aoti",
                reason=f"torch is installed in '{Path(torch.__file__).parent}', and Inductor cannot compile against a "
                "path with spaces or quotes",
                next_step="Install into another folder, or use backend='eager'.",
            )
        compiler = _compiler()
        if shutil.which(compiler) is None:
            raise BackendRefusedError(
                backend="aoti",
                reason=f"no C++ compiler ({compiler!r} is not on PATH)",
                next_step="Install g++, name one in CXX, or use backend='eager'.",
            )

    def arrange(self, definition: Definition) -> Definition:
        """Weights that are packed lie row-major."""
        return packed_convolutions.arrange(definition)

    def build_key(self, *, requirement: str) -> str:
        """Options, what is compiled in place of operators, and the versions of torch and of the C++ compiler."""
        said = _version_of(_compiler()) if shutil.which(_compiler()) else "no compiler"
        options = sorted(_options(requirement).items())
        return f"{options} {_LOWERING} torch {torch.__version__} {said.partition(chr(10))[0]}"

    def build(self, definition: Definition, *, requirement: str) -> bytes:
        """Compile. Takes 10 to 20 s and leaves nothing behind but the package."""
        sizes = trace_sizes(definition.dims)
        dims = {dim.name: torch.export.Dim(dim.name, min=dim.min, max=dim.max) for dim in definition.dims}
        inputs = tuple(torch.zeros(spec.at(sizes), dtype=dtypes.BY_NAME[spec.dtype]) for spec in definition.inputs)
        shapes = tuple(
            {axis: dims[dim] for axis, dim in enumerate(spec.dims) if dim is not None} for spec in definition.inputs
        )
        with _scratch() as scratch, _plain(scratch) as folder, _environment(TORCHINDUCTOR_CACHE_DIR=f"{folder}/cache"):
            package = _compile(
                _ConstantsOutside(definition), inputs, shapes, folder / "package.pt2", options=_options(requirement)
            )
        found = set(_open(package).get_constant_fqns())
        expected = set(_constant_names(definition, packed_convolutions.find(definition)))
        if found != expected:
            raise BuildError(
                backend="aoti",
                reason=f"its constants are {sorted(found ^ expected)} off the program's: some were baked in or added",
            )
        refuse_specialised(definition, _AotiEngine(_open(package), definition))
        return package

    def load(self, definition: Definition, target: Target | None, package: bytes) -> Engine:
        """Load native code that was checked against the program."""
        if target is None:
            raise BackendRefusedError(
                backend="aoti",
                reason="the program holds no package for it",
                next_step="Compile it with backend='aoti', or load it with backend='eager'.",
            )
        _refuse_machine(target.requirement)
        if target.torch_version != torch_version():
            raise BackendRefusedError(
                backend="aoti",
                reason=f"its package was built by torch {target.torch_version} and this is torch {torch_version()}",
                next_step="Compile it again here, or load it with backend='eager'.",
            )
        try:
            return _AotiEngine(_open(package), definition)
        except RuntimeError as error:
            raise BackendRefusedError(
                backend="aoti",
                reason=f"torch cannot load its package: {error}",
                next_step="Compile it again here, or load it with backend='eager'.",
            ) from error


class _Named(dict[str, Tensor]):
    """Constants by the names that the code has for them; a class of its own, as nothing plain tells when it is gone."""


class _AotiEngine:
    def __init__(self, loader: Any, definition: Definition) -> None:
        self._loader = loader
        packed = packed_convolutions.find(definition)
        if set(loader.get_constant_fqns()) != set(_constant_names(definition, packed)):
            packed = ()
        self._names = _constant_names(definition, packed)
        self._weights = PackedWeights(packed)
        self._bound: _Named | None = None

    def prepare(self, constants: Sequence[Tensor]) -> "_Named":
        named = _Named()
        named.update(zip(self._names, self._weights.pack(constants, owner=named), strict=True))
        return named

    def bind(self, prepared: "_Named") -> None:
        self._loader.load_constants(dict(prepared), use_inactive=False, check_full_update=True, user_managed=True)
        self._bound = prepared

    def run(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return self._loader.run(list(inputs))  # type: ignore[no-any-return]


class _ConstantsOutside(nn.Module):
    """The definition as a module whose constants are buffers, as named below; their values do not matter."""

    def __init__(self, definition: Definition) -> None:
        super().__init__()
        packed = packed_convolutions.find(definition)
        calls: dict[int, Callable[..., Tensor]] = {entry.node: entry for entry in packed}
        calls.update(dict.fromkeys(separate_biases.find(definition), separate_biases.linear))
        self._interpreter = Interpreter(definition).replaced({node: (call, {}) for node, call in calls.items()})
        for name, constant in zip(_constant_names(definition, packed), definition.constants, strict=True):
            memory = torch.empty_strided(constant.shape, constant.strides, dtype=dtypes.BY_NAME[constant.dtype])
            self.register_buffer(name, memory.zero_())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self._interpreter.run(inputs, list(self.buffers()))


def _constant_names(definition: Definition, packed: Sequence[Convolution]) -> list[str]:
    """``c0``, ``c1``, …, those that are packed when they are bound ``packed0``, …"""
    derived = {convolution.constant for convolution in packed}
    return [f"{'packed' if index in derived else 'c'}{index}" for index in range(len(definition.constants))]


def refuse_specialised(definition: Definition, engine: Engine) -> None:
    """Refuse code that answers for one size of a dimension only, and says nothing.

    Raises:
        BuildError: At the least or the greatest sizes it fails, or an output has another shape than stated.
    """
    if not definition.dims:
        return
    constants = list(_ConstantsOutside(definition).buffers())
    engine.bind(engine.prepare(constants))
    for sizes in ({dim.name: dim.min for dim in definition.dims}, {dim.name: dim.max for dim in definition.dims}):
        inputs = [torch.zeros(spec.at(sizes), dtype=dtypes.BY_NAME[spec.dtype]) for spec in definition.inputs]
        try:
            with torch.no_grad():
                found = [tuple(value.shape) for value in engine.run(inputs)]
        except RuntimeError as error:
            raise BuildError(backend="aoti", reason=f"its code fails at {sizes}: {error}") from error
        for shape, output in zip(found, definition.outputs, strict=True):
            sized = zip(shape, output.spec.at(sizes), output.spec.dims, strict=True)
            if any(dim != "" and size != stated for size, stated, dim in sized):
                raise BuildError(
                    backend="aoti",
                    reason=f"a dynamic dimension was specialised: output {output.spec.name!r} is {shape} at {sizes}, "
                    f"expected {output.spec.at(sizes)}",
                )


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _version_of(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def _options(requirement: str) -> dict[str, Any]:
    """For the base as pinned; for more, whatever this machine has."""
    if requirement == instruction_sets.BASE:
        return dict(OPTIONS)
    return {**OPTIONS, "cpp.march": "native", "cpp.simdlen": 512 if "+avx512f" in requirement else 256}


def _refuse_machine(requirement: str) -> None:
    lacks = instruction_sets.lacks(requirement)
    if lacks:
        raise BackendRefusedError(
            backend="aoti",
            reason=f"its code needs {requirement} and {lacks}",
            next_step="Use backend='eager'.",
        )


def _compile(
    module: nn.Module, inputs: tuple[Tensor, ...], shapes: tuple[Any, ...], path: Path, *, options: dict[str, Any]
) -> bytes:
    with warnings.catch_warnings(), torch.no_grad():
        # Inductor and export warn about their own use of torch (torch.jit, pytree): nothing a caller could change.
        warnings.simplefilter("ignore", category=DeprecationWarning)
        warnings.simplefilter("ignore", category=FutureWarning)
        exported = torch.export.export(module, inputs, dynamic_shapes={"inputs": shapes}, strict=False)
        try:
            torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=options)
        except RuntimeError as error:
            raise BuildError(backend="aoti", reason=f"AOTInductor failed: {error}") from error
    return path.read_bytes()


def _open(package: bytes) -> Any:
    """Load from bytes, so that what was hashed is what runs. The folder may go: the code stays mapped."""
    with _scratch() as folder, _environment(TMPDIR=str(folder)):
        path = folder / "package.pt2"
        path.write_bytes(package)
        return torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A private folder, removed on leaving; folders that killed processes left a day ago are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH_PREFIX}*"):
        if time.time() - left.stat().st_mtime > _SCRATCH_AGE_S:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX) as folder:
        yield Path(folder)


@contextmanager
def _plain(folder: Path) -> Iterator[Path]:
    """A path of the folder without spaces or the like: Inductor gives its paths to the C++ compiler unquoted."""
    if _is_plain(folder):
        yield folder
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _is_plain(path: Path) -> bool:
    return shlex.split(str(path)) == [str(path)]


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables that native code and Inductor read; one thread at a time, as they belong to the process."""
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


BACKEND = AotiBackend()
