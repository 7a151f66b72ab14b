"""The onnx backend: a graph for ONNX Runtime, natively or as WebAssembly in a browser, with every constant outside of
it.

``torch.onnx.export`` sees the constants as inputs, so that it can fold none of them; then each becomes an initializer
whose bytes lie in ``constants.bin``, at the place that it has in the program's arena, in row-major order. So one graph
file serves every checkpoint, and new weights rewrite only the ranges of the constants that changed.

ONNX Runtime packs weights when a session opens. ``prepare`` opens one, which takes some 10 ms for each 10 MB: what is
written to constants afterwards is seen when they are bound again.
"""

import warnings
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from compiler import constants as arenas
from compiler import dtypes
from compiler.backends.target import Target, torch_version
from compiler.definition import Definition
from compiler.dynamic import trace_sizes
from compiler.errors import BackendRefusedError, BuildError
from compiler.interpreter import Interpreter
from compiler.runner import Engine
from compiler.specs import ConstantSpec, TensorSpec

GRAPH_FILE: Final = "model.onnx"
DATA_FILE: Final = "constants.bin"

_NEEDS: Final = ("onnx", "onnxruntime", "onnxscript")
_ELEMENTS: Final = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FLOAT16",
    "float32": "FLOAT",
    "float64": "DOUBLE",
}


class OnnxBackend:
    """Needs the packages of the extra ``onnx``."""

    requirement = "any"
    suffix = ".onnx"

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
            if dtype not in _ELEMENTS:
                raise BackendRefusedError(
                    backend="onnx",
                    reason=f"{name!r} is {dtype}, which does not pass through NumPy",
                    next_step="Compile a float32 or float16 model, or use another backend.",
                )

    def build_key(self, *, requirement: str) -> str:
        """Versions of torch and of what writes the graph."""
        return " ".join([f"torch {torch.__version__}", *(f"{name} {_version(name)}" for name in _NEEDS)])

    def build(self, definition: Definition, *, requirement: str) -> bytes:
        """Export. Takes a few seconds."""
        model = _export(definition)
        _put_constants_outside(model, definition)
        _state_shapes(model, definition)
        _drop_traces(model)
        return model.SerializeToString(deterministic=True)  # type: ignore[no-any-return]

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
        options.add_external_initializers([_constant_name(index) for index, _ in named], [value for _, value in named])
        return onnxruntime.InferenceSession(self._package, options, providers=["CPUExecutionProvider"]), values

    def bind(self, prepared: tuple[Any, Any]) -> None:
        self._bound = prepared

    def run(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        given = {name: tensor.numpy() for name, tensor in zip(self._inputs, inputs, strict=True)}
        return [torch.from_numpy(array) for array in self._bound[0].run(None, given)]


def write_files(
    package: bytes, constants: Sequence[ConstantSpec], memory: Mapping[str, Tensor], folder: str | Path
) -> Path:
    """Write ``model.onnx`` and ``constants.bin`` into a folder, for any ONNX Runtime to open.

    Args:
        package: What the target ``onnx`` of a program holds.
        constants: The program's.
        memory: As ``Program.evaluate`` filled it.
        folder: Is made; files of these names in it are replaced.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / GRAPH_FILE).write_bytes(package)
    with (folder / DATA_FILE).open("wb") as file:
        file.truncate(arenas.arena_bytes(constants))
    update_files(constants, memory, folder, names=[constant.name for constant in constants])
    return folder


def update_files(
    constants: Sequence[ConstantSpec], memory: Mapping[str, Tensor], folder: str | Path, *, names: Collection[str]
) -> None:
    """Rewrite the ranges of ``constants.bin`` that hold some constants (those that ``Program.evaluate`` gave back)."""
    starts = arenas.offsets(constants)
    with (Path(folder) / DATA_FILE).open("r+b") as file:
        for constant in constants:
            if constant.name in names and constant.size_bytes:
                file.seek(starts[constant.name])
                file.write(memory[constant.name].contiguous().reshape(-1).view(torch.uint8).numpy().data)


class _ConstantsAsInputs(nn.Module):
    def __init__(self, definition: Definition) -> None:
        super().__init__()
        self._interpreter = Interpreter(definition)
        self._inputs = len(definition.inputs)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._interpreter.run(tensors[: self._inputs], tensors[self._inputs :])


def _export(definition: Definition) -> Any:
    sizes = trace_sizes(definition.dims)
    dims = {dim.name: torch.export.Dim(dim.name, min=dim.min, max=dim.max) for dim in definition.dims}
    tensors = [torch.zeros(spec.at(sizes), dtype=dtypes.BY_NAME[spec.dtype]) for spec in definition.inputs]
    shapes: list[dict[int, Any]] = [
        {axis: dims[dim] for axis, dim in enumerate(spec.dims) if dim is not None} for spec in definition.inputs
    ]
    for constant in definition.constants:
        tensors.append(torch.zeros(constant.shape, dtype=dtypes.BY_NAME[constant.dtype]))
        shapes.append({})
    names = [spec.name for spec in definition.inputs]
    names += [_constant_name(index) for index in range(len(definition.constants))]
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # Export and its ONNX half warn about their own use of torch (pytree): nothing a caller could change.
            warnings.simplefilter("ignore", category=DeprecationWarning)
            warnings.simplefilter("ignore", category=FutureWarning)
            exported = torch.export.export(
                _ConstantsAsInputs(definition).eval(),
                tuple(tensors),
                dynamic_shapes={"tensors": tuple(shapes)},
                strict=False,
            )
            written = torch.onnx.export(
                exported,
                input_names=names,
                output_names=[output.spec.name for output in definition.outputs],
                dynamo=True,
                optimize=False,
                verbose=False,
            )
    except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
        raise BuildError(backend="onnx", reason=f"torch.onnx cannot write it: {_cause(error)}") from error
    assert written is not None, "an exported program gives an ONNX program"
    return written.model_proto


def _cause(error: BaseException) -> str:
    """The first word about it: torch.onnx wraps each error in advice about its own reports."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def _put_constants_outside(model: Any, definition: Definition) -> None:
    import onnx

    found = {value.name for value in model.graph.input}
    expected = {spec.name for spec in definition.inputs} | {
        _constant_name(index) for index in range(len(definition.constants))
    }
    if found != expected:
        raise BuildError(backend="onnx", reason=f"its inputs are {sorted(found ^ expected)} off the program's")
    starts = arenas.offsets(definition.constants)
    for index, constant in enumerate(definition.constants):
        tensor = model.graph.initializer.add(name=_constant_name(index), doc_string=constant.name, dims=constant.shape)
        tensor.data_type = _element(constant.dtype)
        if not constant.size_bytes:
            tensor.raw_data = b""
            continue
        tensor.data_location = onnx.TensorProto.EXTERNAL
        place = {"location": DATA_FILE, "offset": starts[constant.name], "length": constant.size_bytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))


def _state_shapes(model: Any, definition: Definition) -> None:
    """Inputs and outputs as the program states them; shapes between are for ONNX Runtime to find."""
    graph = model.graph
    for field, specs in (
        (graph.input, definition.inputs),
        (graph.output, [output.spec for output in definition.outputs]),
    ):
        del field[:]
        field.extend(_value_info(spec) for spec in specs)
    del graph.value_info[:]


def _value_info(spec: TensorSpec) -> Any:
    import onnx

    axes = [dim or None if size is None else size for size, dim in zip(spec.shape, spec.dims, strict=True)]
    return onnx.helper.make_tensor_value_info(spec.name, _element(spec.dtype), axes)


def _drop_traces(model: Any) -> None:
    """Where a node comes from names files of the machine that built it."""
    del model.metadata_props[:]
    for part in (model.graph, *model.graph.node, *model.functions, *(node for f in model.functions for node in f.node)):
        part.doc_string = ""
        del part.metadata_props[:]


def _element(dtype: str) -> int:
    import onnx

    return int(getattr(onnx.TensorProto, _ELEMENTS[dtype]))


def _constant_name(index: int) -> str:
    return f"c{index}"


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
