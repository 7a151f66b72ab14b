"""Capture: an ``nn.Module`` becomes a functional FX graph of table operators over named constants.

``torch.export`` traces with a batch size that is neither 1 nor an end of its range (it silently specialises there), and
decomposition to functional operators removes writes in place, so that a later pass never has to look for them. Refused,
with what to do: modules in training mode, writes to state or inputs, operators outside the table, weights that are in
no ``state_dict``, dimensions that the trace fixed.
"""

import traceback
import warnings
from collections.abc import Mapping, Sequence
from os import sep
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from compiler import dtypes, operators
from compiler.definition import Literal
from compiler.dynamic import Dynamic, as_signature, dims_by_axis, distinct_dims, input_names, resize, trace_sizes
from compiler.errors import (
    CaptureError,
    ControlFlowError,
    DynamicShapeError,
    MutationError,
    TrainingModeError,
    UnsupportedOperatorError,
)
from compiler.formula import Formula
from compiler.graph import Constant, Graph, site
from compiler.literals import literal_of
from compiler.specs import Dim, TensorSpec, is_dense, row_major

# Assertions about facts that the program states anyway (static dtypes, ranges of dimensions); they return nothing.
_STATED_ANYWAY: Final = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range_for_size.default",
        "aten.sym_constrain_range.default",
    }
)


_MASKS: Final = (torch.bool, torch.uint8)


def capture(model: nn.Module, example_inputs: Sequence[Tensor], *, dynamic: Dynamic | None = None) -> Graph:
    """Trace ``model`` into a graph.

    Args:
        model: In evaluation mode, on the CPU.
        example_inputs: One tensor per positional argument of ``forward``; their values do not matter, shapes do.
        dynamic: Input name → axis → dimension. Everything else keeps the size it has in the example.

    Raises:
        CaptureError: Or one of its children, naming module, tensor or operator.
        DynamicShapeError: ``dynamic`` names an input or axis that does not exist, or the model fixes the dimension.
    """
    name = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            f"{name} is TorchScript, expected a module of Python code. Build the model from its source and load its "
            "weights into that.",
            model=name,
        )
    _require_evaluation_mode(model, name)
    names = input_names(model, example_inputs)
    placed = dims_by_axis(names, example_inputs, dynamic or {})
    sizes = trace_sizes(distinct_dims(placed))
    traced = [resize(tensor, axes, sizes) for tensor, axes in zip(example_inputs, placed, strict=True)]
    exported = _export(model, traced, placed, name)
    return _as_graph(exported, model, names, placed, name)


def _require_evaluation_mode(model: nn.Module, name: str) -> None:
    training = [path or name for path, module in model.named_modules() if module.training]
    if training:
        raise TrainingModeError(model=name, modules=training)


def _export(model: nn.Module, inputs: list[Tensor], placed: list[dict[int, Dim]], name: str) -> ExportedProgram:
    symbols = {dim.name: torch.export.Dim(dim.name, min=dim.min, max=dim.max) for dim in distinct_dims(placed)}
    shapes = [{axis: symbols[dim.name] for axis, dim in axes.items()} for axes in placed]
    try:
        with warnings.catch_warnings():
            # torch copies its own pytree specifications through a deprecated check (torch 2.13, copyreg).
            warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)", category=FutureWarning)
            exported = torch.export.export(
                model, tuple(inputs), dynamic_shapes=as_signature(model, shapes), strict=False
            )
            functional: ExportedProgram = exported.run_decompositions({})
            return functional
    except torch._dynamo.exc.UserError as error:
        raise DynamicShapeError(
            f"{name}: torch.export refuses the dynamic dimensions: {error}. "
            "Make the dimension static, or take the fixed size out of forward()."
        ) from error
    except GuardOnDataDependentSymNode as error:
        raise ControlFlowError(model=name, detail=_place_of(error)) from error
    except RuntimeError as error:
        raise CaptureError(
            f"{name}: torch.export cannot trace it: {error}. Calls outside torch have to leave forward().", model=name
        ) from error


def _place_of(error: BaseException) -> str:
    """The line of the innermost ``forward`` that an exception came through, as it stands there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.name == "forward" and f"{sep}torch{sep}" not in frame.filename]
    if not own:
        return str(error).partition("\n")[0]
    return f"{own[-1].line!r} ({own[-1].filename}:{own[-1].lineno})"


def _as_graph(
    exported: ExportedProgram, model: nn.Module, names: tuple[str, ...], placed: list[dict[int, Dim]], name: str
) -> Graph:
    _refuse_mutation(exported, name)
    graph = exported.graph
    _drop_assertions(graph)
    _refuse_unknown_operators(graph, name)
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    inputs: dict[str, TensorSpec] = {}
    constants: dict[str, Constant] = {}
    literals: dict[str, Literal] = {}
    state = model.state_dict()
    for spec in exported.graph_signature.input_specs:
        node = placeholders[_argument_name(spec, name)]
        if spec.kind is InputKind.USER_INPUT:
            position = len(inputs)
            inputs[str(node.target)] = _input_spec(node, names[position], placed[position])
            continue
        constant, literal = _constant(spec, exported, state, name)
        constants[str(node.target)] = constant
        if literal is not None:
            literals[literal.name] = literal
    tensors = {key: _static_spec(key, value) for key, value in state.items() if isinstance(value, Tensor)}
    return Graph(
        model=name,
        fx=graph,
        dims=distinct_dims(placed),
        inputs=inputs,
        constants=constants,
        literals=literals,
        tensors=tensors,
        output_names=_output_names(exported, name),
    )


def _refuse_mutation(exported: ExportedProgram, name: str) -> None:
    writes = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
    targets = [str(spec.target) for spec in exported.graph_signature.output_specs if spec.kind in writes]
    if targets:
        raise MutationError(model=name, targets=targets)


def _drop_assertions(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op == "call_function" and operators.name_of(node.target) in _STATED_ANYWAY and not node.users:
            graph.erase_node(node)


def _refuse_unknown_operators(graph: fx.Graph, name: str) -> None:
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        chooses = [user for user in node.users if isinstance(user.target, torch._ops.HigherOrderOperator)]
        if node.op == "get_attr" and chooses:
            raise ControlFlowError(model=name, detail=f"{operators.name_of(chooses[0].target)} at {site(chooses[0])}")
        operator = operators.name_of(node.target)
        if node.op != "call_function" or operators.find(operator) is None:
            raise UnsupportedOperatorError(model=name, operator=operator, site=site(node))
        if operator == "aten.index.Tensor" and any(each.meta["val"].dtype in _MASKS for each in node.args[1] if each):
            why = "by a mask, how much is found depends on values"
            raise UnsupportedOperatorError(model=name, operator=operator, site=site(node), why=why)


def _argument_name(spec: InputSpec, name: str) -> str:
    argument = spec.arg
    if not isinstance(argument, torch.export.graph_signature.TensorArgument):
        raise CaptureError(
            f"{name}: it takes {argument} beside tensors; wrap it in a module whose forward takes tensors only.",
            model=name,
        )
    return argument.name


def _input_spec(node: fx.Node, name: str, axes: Mapping[int, Dim]) -> TensorSpec:
    value = node.meta["val"]
    for axis, dim in axes.items():
        if isinstance(value.shape[axis], int):
            raise DynamicShapeError(
                f"axis {axis} of input {name!r} should be dynamic ({dim.name}), but tracing fixed it at "
                f"{value.shape[axis]}; forward() compares or reshapes with a constant."
            )
    shape = tuple(None if axis in axes else int(size) for axis, size in enumerate(value.shape))
    dims = tuple(axes[axis].name if axis in axes else None for axis in range(value.dim()))
    return TensorSpec(name=name, dtype=dtypes.NAME[value.dtype], shape=shape, dims=dims)


def _static_spec(name: str, tensor: Tensor) -> TensorSpec:
    dtype = dtypes.NAME.get(tensor.dtype, str(tensor.dtype))
    return TensorSpec(name=name, dtype=dtype, shape=tuple(tensor.shape), dims=(None,) * tensor.dim())


def _constant(
    spec: InputSpec, exported: ExportedProgram, state: Mapping[str, Any], name: str
) -> tuple[Constant, Literal | None]:
    target = str(spec.target)
    in_checkpoint = spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and spec.persistent)
    if in_checkpoint and target not in state:
        raise CaptureError(
            f"{name}: weight {target!r} is not in its state_dict(), so no checkpoint could bring it; "
            "remove the hook that hides it.",
            model=name,
        )
    tensor = state[target] if in_checkpoint else exported.constants[target]
    if not isinstance(tensor, Tensor) or tensor.dtype not in dtypes.NAME:
        raise CaptureError(
            f"{name}: constant {target!r} is {getattr(tensor, 'dtype', type(tensor).__name__)}, expected a tensor of "
            f"{', '.join(dtypes.BY_NAME)}.",
            model=name,
        )
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    constant = Constant(
        name=target if in_checkpoint else f"literal[{target}]",
        dtype=tensor.dtype,
        shape=shape,
        strides=strides if is_dense(shape, strides) else row_major(shape),
        formula=Formula.tensor(target) if in_checkpoint else Formula.literal(target),
    )
    return constant, None if in_checkpoint else literal_of(target, tensor)


def _output_names(exported: ExportedProgram, name: str) -> tuple[str, ...]:
    """``output`` for a lone tensor, dictionary keys where there are some, ``output_<k>`` otherwise."""
    specs = [spec for spec in exported.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    for spec in specs:
        if not isinstance(spec.arg, torch.export.graph_signature.TensorArgument):
            raise CaptureError(
                f"{name}: it returns {spec.arg} beside tensors; wrap it in a module that returns tensors only.",
                model=name,
            )
    structure = pytree.tree_unflatten(list(range(len(specs))), exported.call_spec.out_spec)
    if isinstance(structure, int):
        return ("output",)
    paths, _ = pytree.tree_flatten_with_path(structure)
    return tuple(
        path[-1].key if isinstance(path[-1], pytree.MappingKey) else f"output_{index}"
        for index, (path, _) in enumerate(paths)
    )
