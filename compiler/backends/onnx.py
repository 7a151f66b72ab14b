"""The onnx backend: a graph for ONNX Runtime, natively or as WebAssembly in a browser, with every constant outside of
it, so that one graph serves every checkpoint. ``onnx_graph`` writes it; ``onnx_files`` puts it beside its constants for
others to open.

ONNX Runtime packs weights when a session opens. ``prepare`` opens one, which takes some 10 ms for each 10 MB: what is
written to constants afterwards is seen when they are bound again.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import Tensor

from compiler.backends.onnx_graph import ELEMENTS, constant_name, write_graph
from compiler.backends.target import Target, torch_version
from compiler.definition import Definition
from compiler.errors import BackendRefusedError
from compiler.runner import Engine

_NEEDS: Final = ("onnx", "onnxruntime", "onnxscript")


class OnnxBackend:
    """Needs the packages of the extra ``onnx``."""

    requirement = "any"
    suffix = ".onnx"
    devices = ("cpu",)

    def resolve(self, asked: str) -> str:
        """One graph for every machine."""
        return asked

    def choose(self, targets: Sequence[Target]) -> Target | None:
        """The one there is."""
        return next(iter(targets), None)

    def refuse(self, definition: Definition, *, requirement: str) -> None:
        """Refuse where a package is missing, and element types that NumPy does not have."""
        _refuse_missing()
        specs = (*definition.inputs, *(output.spec for output in definition.outputs))
        stated = [(spec.name, spec.dtype) for spec in specs]
        stated += [(constant.name, constant.dtype) for constant in definition.constants]
        for name, dtype in stated:
            if dtype not in ELEMENTS:
                raise BackendRefusedError(
                    backend="onnx",
                    reason=f"{name!r} is {dtype}, which does not pass through NumPy",
                    next_step="Compile a float32 or float16 model, or use another backend.",
                )

    def arrange(self, definition: Definition) -> Definition:
        """As it is."""
        return definition

    def build_key(self, *, requirement: str) -> str:
        """Versions of torch and of what writes the graph."""
        return " ".join([f"torch {torch.__version__}", *(f"{name} {_version(name)}" for name in _NEEDS)])

    def build(self, definition: Definition, *, requirement: str) -> bytes:
        """Export. Takes a few seconds."""
        return write_graph(definition)

    def load(self, definition: Definition, target: Target | None, package: bytes) -> Engine:
        """A session for each set of constants."""
        if target is None:
            raise BackendRefusedError(
                backend="onnx",
                reason="the program holds no graph for it",
                next_step="Compile it with backend='onnx', or load it with backend='eager'.",
            )
        _refuse_missing()
        return _OnnxEngine(definition, package)


class _OnnxEngine:
    def __init__(self, definition: Definition, package: bytes) -> None:
        self._package = package
        self._inputs = [spec.name for spec in definition.inputs]
        self._bound: tuple[Any, Any] = (None, None)

    def prepare(self, constants: Sequence[Tensor]) -> tuple[Any, Any]:
        """A session, and the memory that it reads."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors; warnings are about its own optimiser
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(tensor.contiguous().numpy()) for tensor in constants]
        named = [(index, value) for index, value in enumerate(values) if constants[index].numel()]
        options.add_external_initializers([constant_name(index) for index, _ in named], [value for _, value in named])
        return onnxruntime.InferenceSession(self._package, options, providers=["CPUExecutionProvider"]), values

    def bind(self, prepared: tuple[Any, Any]) -> None:
        self._bound = prepared

    def run(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        given = {name: tensor.numpy() for name, tensor in zip(self._inputs, inputs, strict=True)}
        return [torch.from_numpy(array) for array in self._bound[0].run(None, given)]


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _refuse_missing() -> None:
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise BackendRefusedError(
            backend="onnx",
            reason=f"{', '.join(missing)} is not installed (this is torch {torch_version()})",
            next_step="Install the extra, pip install '.[onnx]', or use backend='eager'.",
        )


BACKEND = OnnxBackend()
