"""A program's values as protobuf messages, and the digest of a definition.

Encoding is a plain transcription, in the order of the schema; ``compiler.decode`` is its inverse and checks what it
reads. The digest covers the definition alone: not the packages, whose bytes differ from build to build.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from compiler.backends.target import Target
from compiler.definition import Argument, Atom, Definition, DTypeName, MemoryFormatName, Node, Ref
from compiler.formula import Step
from compiler.passes.report import PassReport
from compiler.proto import program_pb2 as pb
from compiler.report import Drawing, Figure, Report
from compiler.specs import ConstantSpec, TensorSpec

DIGEST_DOMAIN: Final = b"treering/program/v1\0"


def digest(definition: Definition) -> str:
    """``sha256:<64 hex>`` over the canonical encoding of the graph."""
    encoded = encode_definition(definition).SerializeToString(deterministic=True)
    return "sha256:" + hashlib.sha256(DIGEST_DOMAIN + encoded).hexdigest()


def encode_program(definition: Definition, *, backend: str, targets: Iterable[Target], report: Report) -> pb.Program:
    """Everything that ``program.pb`` holds."""
    return pb.Program(
        definition=encode_definition(definition),
        backend=backend,
        targets=[_target(target) for target in targets],
        passes=[_pass(entry) for entry in report.passes],
        figures=[_figure(figure) for figure in report.figures],
        captured=None if report.captured is None else _drawing(report.captured),
    )


def encode_definition(definition: Definition) -> pb.Definition:
    """The part that the digest covers."""
    return pb.Definition(
        dims=[pb.Dim(name=dim.name, min=dim.min, max=dim.max) for dim in definition.dims],
        inputs=[_spec(spec) for spec in definition.inputs],
        requires=[_spec(spec) for spec in definition.requires],
        literals=[
            pb.Literal(name=literal.name, dtype=_dtype(literal.dtype), shape=literal.shape, data=literal.data)
            for literal in definition.literals
        ],
        constants=[_constant(constant) for constant in definition.constants],
        nodes=[_node(node) for node in definition.nodes],
        outputs=[pb.Output(value=output.value, spec=_spec(output.spec)) for output in definition.outputs],
    )


def _drawing(drawing: Drawing) -> pb.Drawing:
    return pb.Drawing(text=drawing.text, dot=drawing.dot)


def _dtype(name: str) -> str:
    return f"DTYPE_{name.upper()}"


def _spec(spec: TensorSpec) -> pb.TensorSpec:
    return pb.TensorSpec(
        name=spec.name,
        dtype=_dtype(spec.dtype),
        axes=[_axis(size, dim) for size, dim in zip(spec.shape, spec.dims, strict=True)],
    )


def _axis(size: int | None, dim: str | None) -> pb.Axis:
    if size is not None:
        return pb.Axis(fixed=size)
    return pb.Axis(dim=dim) if dim else pb.Axis(computed=True)


def _constant(constant: ConstantSpec) -> pb.Constant:
    return pb.Constant(
        name=constant.name,
        dtype=_dtype(constant.dtype),
        shape=constant.shape,
        strides=constant.strides,
        steps=[_step(step) for step in constant.formula.steps],
    )


def _step(step: Step) -> pb.Step:
    return pb.Step(
        operation=f"OPERATION_{step.operation.upper()}",
        operands=step.operands,
        name=step.name,
        value=step.value,
        shape=step.shape,
        axes=step.axes,
        start=step.start,
        length=step.length,
    )


def _node(node: Node) -> pb.Node:
    return pb.Node(
        operator=node.operator,
        arguments=[_argument(name, argument) for name, argument in node.arguments],
        device_set=[f"DEVICE_{device.upper()}" for device in node.device_set],
        memory_layout=f"MEMORY_LAYOUT_{node.memory_layout.upper()}",
        phase=f"PHASE_{node.phase.upper()}",
        sync_mode=f"SYNC_MODE_{node.sync_mode.upper()}",
    )


def _argument(name: str, argument: Argument) -> pb.Argument:
    if isinstance(argument, tuple):
        return pb.Argument(name=name, list=pb.AtomList(atoms=[_atom(atom) for atom in argument]))
    return pb.Argument(name=name, atom=_atom(argument))


def _atom(atom: Atom) -> pb.Atom:
    match atom:
        case None:
            return pb.Atom(none=True)
        case bool():
            return pb.Atom(flag=atom)
        case int():
            return pb.Atom(integer=atom)
        case float():
            return pb.Atom(real=atom)
        case str():
            return pb.Atom(text=atom)
        case Ref():
            return pb.Atom(ref=atom.value)
        case DTypeName():
            return pb.Atom(dtype=_dtype(atom.name))
        case MemoryFormatName():
            return pb.Atom(memory_format=f"MEMORY_FORMAT_{atom.name.upper()}")


def _target(target: Target) -> pb.Target:
    return pb.Target(
        backend=target.backend,
        requirement=target.requirement,
        torch_version=target.torch_version,
        path=target.path,
        size_bytes=target.size_bytes,
        sha256=bytes.fromhex(target.sha256),
    )


def _pass(entry: PassReport) -> pb.Pass:
    return pb.Pass(
        name=entry.name,
        changes=[pb.Change(site=change.site, what=change.what) for change in entry.changes],
        refusals=[
            pb.Refusal(site=refusal.site, reason=refusal.reason, detail=refusal.detail) for refusal in entry.refusals
        ],
    )


def _figure(figure: Figure) -> pb.Figure:
    return pb.Figure(
        backend=figure.backend,
        checkpoint=figure.checkpoint,
        inputs=figure.inputs,
        sizes=[pb.DimSize(dim=dim, size=size) for dim, size in figure.sizes.items()],
        error=figure.error,
        eager_error=figure.eager_error,
        bound=figure.bound,
    )
