"""Protobuf messages as a program's values; refuses what has no value, with the path to it.

This file checks forms: enums and choices that are set and known, counts within limits, paths that stay inside the
folder. Whether the definition makes sense (references, shapes, formulas) is for ``compiler.validation`` to say.
"""

from collections.abc import Iterable
from typing import Any, Final

from compiler.backends.target import Target
from compiler.definition import Argument, Atom, Definition, DTypeName, Literal, MemoryFormatName, Node, Output, Ref
from compiler.errors import DynamicShapeError, InvalidProgramError
from compiler.formula import MAX_STEPS, Formula, Step
from compiler.passes.report import Change, PassReport, Reason, Refusal
from compiler.proto import program_pb2 as pb
from compiler.report import Drawing, Figure, Report
from compiler.specs import ConstantSpec, Dim, TensorSpec

MAX_RANK: Final = 16
MAX_NAME_BYTES: Final = 1024
MAX_TARGETS: Final = 16


def decode_definition(message: pb.Definition) -> Definition:
    """The inverse of ``compiler.encode.encode_definition``."""
    return Definition(
        dims=tuple(_dim(dim, path) for dim, path in _each(message.dims, "definition.dims")),
        inputs=tuple(_spec(spec, path) for spec, path in _each(message.inputs, "definition.inputs")),
        requires=tuple(_spec(spec, path) for spec, path in _each(message.requires, "definition.requires")),
        literals=tuple(_literal(literal, path) for literal, path in _each(message.literals, "definition.literals")),
        constants=tuple(_constant(entry, path) for entry, path in _each(message.constants, "definition.constants")),
        nodes=tuple(_node(node, path) for node, path in _each(message.nodes, "definition.nodes")),
        outputs=tuple(
            Output(value=output.value, spec=_spec(output.spec, f"{path}.spec"))
            for output, path in _each(message.outputs, "definition.outputs")
        ),
    )


def decode_targets(message: pb.Program) -> tuple[Target, ...]:
    """Targets, each at its own path inside the program's folder."""
    if len(message.targets) > MAX_TARGETS:
        raise _fault("targets", f"{len(message.targets)} targets", f"at most {MAX_TARGETS}")
    paths = [target.path for target in message.targets]
    if len(set(paths)) != len(paths):
        raise _fault("targets", paths, "a path of its own for each")
    return tuple(_target(target, path) for target, path in _each(message.targets, "targets"))


def decode_report(message: pb.Program) -> Report:
    """The account of the compilation."""
    return Report(
        passes=tuple(
            PassReport(
                name=entry.name,
                changes=tuple(Change(site=change.site, what=change.what) for change in entry.changes),
                refusals=tuple(_refusal(refusal, at) for refusal, at in _each(entry.refusals, f"{path}.refusals")),
            )
            for entry, path in _each(message.passes, "passes")
        ),
        figures=tuple(_figure(figure, path) for figure, path in _each(message.figures, "figures")),
        captured=_drawing(message.captured) if message.HasField("captured") else None,
    )


def _drawing(message: pb.Drawing) -> Drawing:
    return Drawing(text=message.text, dot=message.dot)


def _each(messages: Iterable[Any], path: str) -> Iterable[tuple[Any, str]]:
    return ((message, f"{path}[{index}]") for index, message in enumerate(messages))


def _fault(path: str, found: object, expected: object) -> InvalidProgramError:
    return InvalidProgramError(path=path, found=str(found), expected=str(expected))


def _enum(wrapper: Any, prefix: str, number: int, path: str) -> str:
    """``FLOAT32`` of ``DTYPE_FLOAT32`` in lower case; zero and numbers that nobody gave are refused."""
    known = wrapper.values()
    if number == 0 or number not in known:
        raise _fault(path, f"enum value {number}", f"one of {min(known) + 1} to {max(known)}")
    name: str = wrapper.Name(number)
    return name.removeprefix(prefix).lower()


def _dtype(number: int, path: str) -> str:
    return _enum(pb.DType, "DTYPE_", number, f"{path}.dtype")


def _name(name: str, path: str) -> str:
    if not name or len(name.encode()) > MAX_NAME_BYTES:
        raise _fault(f"{path}.name", f"{len(name)} characters", f"1 to {MAX_NAME_BYTES} bytes of UTF-8")
    return name


def _shape(sizes: Iterable[int], path: str) -> tuple[int, ...]:
    shape = tuple(sizes)
    if len(shape) > MAX_RANK or any(size >= 2**62 for size in shape):
        raise _fault(path, f"{len(shape)} axes up to {max(shape, default=0)}", f"at most {MAX_RANK} axes below 2**62")
    return shape


def _dim(dim: pb.Dim, path: str) -> Dim:
    try:
        return Dim(name=dim.name, min=dim.min, max=dim.max)
    except DynamicShapeError as error:
        raise _fault(path, f"{dim.name!r} from {dim.min} to {dim.max}", "a name and 1 <= min < max") from error


def _spec(spec: pb.TensorSpec, path: str) -> TensorSpec:
    if len(spec.axes) > MAX_RANK:
        raise _fault(f"{path}.axes", f"{len(spec.axes)} axes", f"at most {MAX_RANK}")
    axes = [_axis(axis, at) for axis, at in _each(spec.axes, f"{path}.axes")]
    return TensorSpec(
        name=_name(spec.name, path),
        dtype=_dtype(spec.dtype, path),
        shape=tuple(size for size, _ in axes),
        dims=tuple(dim for _, dim in axes),
    )


def _axis(axis: pb.Axis, path: str) -> tuple[int | None, str | None]:
    match axis.WhichOneof("size"):
        case "fixed" if axis.fixed < 2**62:
            return axis.fixed, None
        case "dim" if axis.dim:
            return None, axis.dim
        case "computed" if axis.computed:
            return None, ""
        case other:
            raise _fault(path, f"choice {other}", "a fixed size, the name of a dimension, or computed = true")


def _literal(literal: pb.Literal, path: str) -> Literal:
    return Literal(
        name=_name(literal.name, path),
        dtype=_dtype(literal.dtype, path),
        shape=_shape(literal.shape, f"{path}.shape"),
        data=literal.data,
    )


def _constant(constant: pb.Constant, path: str) -> ConstantSpec:
    if not 0 < len(constant.steps) <= MAX_STEPS:
        raise _fault(f"{path}.steps", f"{len(constant.steps)} steps", f"1 to {MAX_STEPS}")
    return ConstantSpec(
        name=_name(constant.name, path),
        dtype=_dtype(constant.dtype, path),
        shape=_shape(constant.shape, f"{path}.shape"),
        strides=_shape(constant.strides, f"{path}.strides"),
        formula=Formula(steps=tuple(_step(step, at) for step, at in _each(constant.steps, f"{path}.steps"))),
    )


def _step(step: pb.Step, path: str) -> Step:
    return Step(
        operation=_enum(pb.Operation, "OPERATION_", step.operation, f"{path}.operation"),
        operands=tuple(step.operands),
        name=step.name,
        value=step.value,
        shape=_shape(step.shape, f"{path}.shape"),
        axes=_shape(step.axes, f"{path}.axes"),
        start=step.start,
        length=step.length,
    )


def _node(node: pb.Node, path: str) -> Node:
    return Node(
        operator=node.operator,
        arguments=tuple(
            (argument.name, _argument(argument, at)) for argument, at in _each(node.arguments, f"{path}.arguments")
        ),
        device_set=tuple(
            _enum(pb.Device, "DEVICE_", device, f"{path}.device_set[{index}]")
            for index, device in enumerate(node.device_set)
        ),
        memory_layout=_enum(pb.MemoryLayout, "MEMORY_LAYOUT_", node.memory_layout, f"{path}.memory_layout"),
        phase=_enum(pb.Phase, "PHASE_", node.phase, f"{path}.phase"),
        sync_mode=_enum(pb.SyncMode, "SYNC_MODE_", node.sync_mode, f"{path}.sync_mode"),
    )


def _argument(argument: pb.Argument, path: str) -> Argument:
    match argument.WhichOneof("value"):
        case "atom":
            return _atom(argument.atom, f"{path}.atom")
        case "list":
            return tuple(_atom(atom, at) for atom, at in _each(argument.list.atoms, f"{path}.list.atoms"))
        case _:
            raise _fault(path, "no value", "an atom or a list")


def _atom(atom: pb.Atom, path: str) -> Atom:
    match atom.WhichOneof("value"):
        case "none" if atom.none:
            return None
        case "ref":
            return Ref(atom.ref)
        case "dtype":
            return DTypeName(_dtype(atom.dtype, path))
        case "memory_format":
            return MemoryFormatName(
                _enum(pb.MemoryFormat, "MEMORY_FORMAT_", atom.memory_format, f"{path}.memory_format")
            )
        case "flag":
            return atom.flag
        case "integer":
            return atom.integer
        case "real":
            return atom.real
        case "text":
            return atom.text
        case other:
            raise _fault(path, f"choice {other}", "one value (none only as true)")


def _target(target: pb.Target, path: str) -> Target:
    decoded = Target(
        backend=_name(target.backend, f"{path}.backend"),
        requirement=_name(target.requirement, f"{path}.requirement"),
        torch_version=target.torch_version,
        path=target.path,
        size_bytes=target.size_bytes,
        sha256=target.sha256.hex(),
    )
    folder, _, file = target.path.partition("/")
    if folder != "targets" or not file or "/" in file or file.startswith(".") or not file.isprintable():
        raise _fault(f"{path}.path", repr(target.path), "targets/<file name>")
    if len(target.sha256) != 32:
        raise _fault(f"{path}.sha256", f"{len(target.sha256)} bytes", "32")
    return decoded


def _refusal(refusal: pb.Refusal, path: str) -> Refusal:
    if refusal.reason not in set(Reason):
        raise _fault(f"{path}.reason", repr(refusal.reason), f"one of {', '.join(Reason)}")
    return Refusal(site=refusal.site, reason=Reason(refusal.reason), detail=refusal.detail)


def _figure(figure: pb.Figure, path: str) -> Figure:
    dims = [entry.dim for entry in figure.sizes]
    if len(set(dims)) != len(dims):
        raise _fault(f"{path}.sizes", dims, "each dimension once")
    return Figure(
        backend=figure.backend,
        checkpoint=figure.checkpoint,
        inputs=figure.inputs,
        sizes={entry.dim: entry.size for entry in figure.sizes},
        error=figure.error,
        eager_error=figure.eager_error,
        bound=figure.bound,
    )
