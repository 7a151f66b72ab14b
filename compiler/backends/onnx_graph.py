"""The graph that ONNX Runtime reads: a program's operators in ONNX's words, and every constant outside of it.

``torch.onnx.export`` sees the constants as inputs, so that it can fold none of them; then each becomes an initializer
whose bytes lie in ``constants.bin``, at the place that it has in the program's arena, in row-major order. What the
machine that wrote it is called, and where its files lie, is taken out: the same program gives the same bytes.
"""

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from compiler import constants as arenas
from compiler import dtypes, kernels
from compiler.definition import Definition
from compiler.dynamic import trace_sizes
from compiler.errors import BackendError, BackendRefusedError, BuildError
from compiler.interpreter import Interpreter
from compiler.specs import TensorSpec

DATA_FILE: Final = "constants.bin"

ELEMENTS: Final = {
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
_UNTRANSLATED: Final = re.compile(r"Error when translating node .*?target=torch\.ops\.([\w.]+)\]")


def write_graph(definition: Definition) -> bytes:
    """The graph as an ONNX model, without a byte of the constants.

    Raises:
        BackendRefusedError: ONNX has no form for an operator; the message names it and where it stands.
        BuildError: torch.onnx failed otherwise, or wrote other inputs than the program has.
    """
    model = _export(definition)
    _put_constants_outside(model, definition)
    _state_shapes(model, definition)
    _drop_traces(model)
    return model.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


class _ConstantsAsInputs(nn.Module):
    def __init__(self, definition: Definition) -> None:
        super().__init__()
        self._interpreter = Interpreter(definition).replaced(_fused_as_references(definition))
        self._inputs = len(definition.inputs)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._interpreter.run(tensors[: self._inputs], tensors[self._inputs :])


def _fused_as_references(definition: Definition) -> dict[int, tuple[Callable[..., Any], Mapping[str, Any]]]:
    """ONNX has none of our fused operators: what it gets is what they are made of."""
    prefix = f"{kernels.NAMESPACE}."
    return {
        position: (kernels.OPERATIONS[node.operator.removeprefix(prefix).removesuffix(".default")].reference, {})
        for position, node in enumerate(definition.nodes)
        if node.operator.startswith(prefix)
    }


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
    names += [constant_name(index) for index in range(len(definition.constants))]
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
        raise _refusal(error, definition) from error
    assert written is not None, "an exported program gives an ONNX program"
    return written.model_proto


def _refusal(error: BaseException, definition: Definition) -> BackendError:
    """torch.onnx wraps each error in advice about its own reports; what counts is the node, and the first cause."""
    operator = None
    while error.__cause__ is not None:
        operator = operator or _UNTRANSLATED.search(str(error))
        error = error.__cause__
    if operator is None:
        return BuildError(backend="onnx", reason=f"torch.onnx cannot write it: {error}")
    places = [f"%{index}" for index, node in enumerate(definition.nodes) if node.operator == operator[1]]
    return BackendRefusedError(
        backend="onnx",
        reason=f"torch.onnx has no form for {operator[1]!r} ({', '.join(places) or 'inside another'} of the program): "
        f"{error}",
        next_step="Compile with backend='eager' to see the program's text; write the model without this operator, or "
        "use another backend.",
    )


def _put_constants_outside(model: Any, definition: Definition) -> None:
    import onnx

    found = {value.name for value in model.graph.input}
    expected = {spec.name for spec in definition.inputs} | {
        constant_name(index) for index in range(len(definition.constants))
    }
    if found != expected:
        raise BuildError(backend="onnx", reason=f"its inputs are {sorted(found ^ expected)} off the program's")
    starts = arenas.offsets(definition.constants)
    for index, constant in enumerate(definition.constants):
        tensor = model.graph.initializer.add(name=constant_name(index), doc_string=constant.name, dims=constant.shape)
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

    return int(getattr(onnx.TensorProto, ELEMENTS[dtype]))


def constant_name(index: int) -> str:
    """What the graph calls a constant of the program."""
    return f"c{index}"
