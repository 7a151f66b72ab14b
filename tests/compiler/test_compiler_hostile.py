"""Programs that lie are refused with the path to the lie; no bytes make the reader do anything else."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler import decode, framing
from compiler.encode import encode_program
from compiler.proto import program_pb2 as pb
from compiler.validation import validate

Lie = Callable[[pb.Program], object]


def message_of(program: compiler.Program) -> pb.Program:
    return encode_program(program.definition, backend=program.backend, targets=program.targets, report=program.report)


def framed(body: bytes) -> bytes:
    return framing.MAGIC + len(body).to_bytes(8, "little") + body + hashlib.sha256(body).digest()


def read(data: bytes) -> None:
    """What ``compiler.load`` does before it looks at packages."""
    message = framing.unframe(data)
    validate(decode.decode_definition(message.definition))
    decode.decode_targets(message)
    decode.decode_report(message)


def fault_of(data: bytes) -> str | None:
    """The path of the fault, None for a program without one; any other error escapes and fails the test."""
    try:
        read(data)
    except compiler.InvalidProgramError as error:
        return error.path
    return None


def node(message: pb.Program, operator: str) -> pb.Node:
    return next(node for node in message.definition.nodes if node.operator == operator)


def _onto(message: pb.Program, *, twice: bool = False, **fields: Any) -> None:
    """One more step on the first constant's formula."""
    steps = message.definition.constants[0].steps
    last = len(steps) - 1
    steps.add(operands=[last, last] if twice else [last], **fields)


def _outer_product_summed(message: pb.Program) -> None:
    definition = message.definition
    for name, axes in (("column", [2**20, 1]), ("row", [1, 2**20])):
        definition.requires.add(name=name, dtype="DTYPE_FLOAT32", axes=[pb.Axis(fixed=size) for size in axes])
    constant = definition.constants[0]
    for field in ("shape", "strides", "steps"):
        constant.ClearField(field)
    constant.steps.add(operation="OPERATION_TENSOR", name="column")
    constant.steps.add(operation="OPERATION_TENSOR", name="row")
    constant.steps.add(operation="OPERATION_MULTIPLY", operands=[0, 1])
    constant.steps.add(operation="OPERATION_SUM", operands=[2], axes=[0, 1])


LIES: dict[str, tuple[Lie, str]] = {
    "an unknown operator": (
        lambda m: setattr(m.definition.nodes[1], "operator", "aten.from_file.default"),
        r"definition\.nodes\[1\]\.operator: found 'aten\.from_file\.default'",
    ),
    "a value that does not exist": (
        lambda m: setattr(m.definition.nodes[1].arguments[0].atom, "ref", 999),
        r"definition\.nodes\[1\]\.arguments\[0\]: found value 999",
    ),
    "a cycle": (
        lambda m: setattr(m.definition.nodes[1].arguments[0].atom, "ref", len(m.definition.constants) + 2),
        r"definition\.nodes\[1\]\.arguments\[0\]: found value 16, expected a value before 16",
    ),
    "an output that does not exist": (
        lambda m: setattr(m.definition.outputs[0], "value", 999),
        r"definition\.outputs\[0\]\.value: found 999",
    ),
    "an output of another shape": (
        lambda m: setattr(m.definition.outputs[0].spec.axes[1], "fixed", 11),
        r"definition\.outputs\[0\]\.spec\.axes",
    ),
    "an output of another rank": (
        lambda m: m.definition.outputs[0].spec.axes.add(fixed=1),
        r"definition\.outputs\[0\]\.spec\.axes",
    ),
    "an output of another dtype": (
        lambda m: setattr(m.definition.outputs[0].spec, "dtype", "DTYPE_INT64"),
        r"definition\.outputs\[0\]\.spec\.dtype: found int64",
    ),
    "no outputs": (lambda m: m.definition.ClearField("outputs"), r"definition\.outputs: found no outputs"),
    "an argument that the operator does not have": (
        lambda m: m.definition.nodes[1].arguments.add(name="colour", atom=pb.Atom(integer=1)),
        r"definition\.nodes\[1\]\.arguments: found \[.*'colour'\]",
    ),
    "arguments in another order": (
        lambda m: m.definition.nodes[1].arguments.reverse(),
        r"definition\.nodes\[1\]\.arguments",
    ),
    "an argument left out": (
        lambda m: m.definition.nodes[1].arguments.__delitem__(1),
        r"definition\.nodes\[1\]\.arguments: found no weight",
    ),
    "an argument that torch refuses": (
        lambda m: setattr(node(m, "aten.conv2d.default").arguments[3].list.atoms[0], "integer", -2),
        r"definition\.nodes\[1\]: found stride \[-2, 2\]",
    ),
    "a list where a tensor belongs": (
        lambda m: m.definition.nodes[1].arguments[0].list.atoms.add(integer=1),
        r"definition\.nodes\[1\]",
    ),
    "an argument without a value": (
        lambda m: m.definition.nodes[1].arguments[0].ClearField("atom"),
        r"definition\.nodes\[1\]\.arguments\[0\]: found no value",
    ),
    "an unknown dtype": (
        lambda m: setattr(m.definition.constants[0], "dtype", 77),
        r"definition\.constants\[0\]\.dtype: found enum value 77",
    ),
    "no dtype": (
        lambda m: m.definition.constants[0].ClearField("dtype"),
        r"definition\.constants\[0\]\.dtype: found enum value 0",
    ),
    "an unknown phase": (
        lambda m: setattr(m.definition.nodes[0], "phase", 9),
        r"definition\.nodes\[0\]\.phase: found enum value 9",
    ),
    "a phase that is not true": (
        lambda m: setattr(m.definition.nodes[0], "phase", "PHASE_CONSTANT"),
        r"definition\.nodes\[0\]\.phase: found constant, expected request",
    ),
    "no device": (lambda m: m.definition.nodes[0].ClearField("device_set"), r"definition\.nodes\[0\]\.device_set"),
    "a constant of another shape than its formula's": (
        lambda m: m.definition.constants[0].shape.__setitem__(0, 4),
        r"definition\.constants\[0\]\.(shape|strides)",
    ),
    "a constant with gaps": (
        lambda m: m.definition.constants[0].strides.__setitem__(0, 720),
        r"definition\.constants\[0\]\.strides",
    ),
    "a constant with overlaps": (
        lambda m: m.definition.constants[0].strides.__setitem__(0, 0),
        r"definition\.constants\[0\]\.strides",
    ),
    "a formula over a tensor that is not listed": (
        lambda m: setattr(m.definition.constants[0].steps[0], "name", "../../etc/passwd"),
        r"definition\.constants\[0\]\.steps\[0\]\.name: found '\.\./\.\./etc/passwd'",
    ),
    "a formula with a cycle": (
        lambda m: m.definition.constants[0].steps[-1].operands.__setitem__(0, len(m.definition.constants[0].steps) - 1),
        r"definition\.constants\[0\]\.steps\[\d\]\.operands",
    ),
    "a formula without steps": (
        lambda m: m.definition.constants[0].ClearField("steps"),
        r"definition\.constants\[0\]\.steps: found 0 steps",
    ),
    "a formula of too many steps": (
        lambda m: m.definition.constants[0].steps.extend([m.definition.constants[0].steps[0]] * 64),
        r"definition\.constants\[0\]\.steps: found \d+ steps, expected 1 to 64",
    ),
    "a step with a name it does not use": (
        lambda m: setattr(m.definition.constants[0].steps[-1], "name", "x"),
        r"definition\.constants\[0\]\.steps\[\d\]\.name",
    ),
    "a step with a field it does not use": (
        lambda m: setattr(m.definition.constants[0].steps[-1], "length", 3),
        r"definition\.constants\[0\]\.steps\[\d\]\.length: found 3, expected no length",
    ),
    "a sum over an axis that is not there": (
        lambda m: _onto(m, operation="OPERATION_SUM", axes=[9]),
        r"definition\.constants\[0\]\.steps: found .*[Dd]imension",
    ),
    "a sum over no axis": (
        lambda m: _onto(m, operation="OPERATION_SUM"),
        r"definition\.constants\[0\]\.steps\[\d+\]\.axes: found \(\), expected at least one axis",
    ),
    "a join along two axes": (
        lambda m: _onto(m, operation="OPERATION_CAT", axes=[0, 1], twice=True),
        r"definition\.constants\[0\]\.steps\[\d+\]\.axes: found \(0, 1\), expected one axis",
    ),
    "a join of one part": (
        lambda m: _onto(m, operation="OPERATION_CAT", axes=[0]),
        r"definition\.constants\[0\]\.steps\[\d+\]\.operands: found 1 operands, expected 2 or more",
    ),
    "a part beyond the end": (
        lambda m: _onto(m, operation="OPERATION_NARROW", axes=[0], start=7, length=2**63),
        r"definition\.constants\[0\]\.steps: found ",
    ),
    "a formula that takes a terabyte on its way": (
        _outer_product_summed,
        r"definition\.constants\[0\]\.steps\[2\]: found 1099511627776 elements, expected at most 2097153",
    ),
    "a tensor that nothing reads": (
        lambda m: m.definition.requires.add(name="extra", dtype="DTYPE_FLOAT32"),
        r"definition\.requires\[30\]",
    ),
    "a literal of another length": (
        lambda m: setattr(m.definition.literals[0], "data", b"\0" * 3),
        r"definition\.literals\[0\]\.data: found 3 bytes, expected 4",
    ),
    "a name given twice": (
        lambda m: setattr(m.definition.constants[1], "name", m.definition.constants[0].name),
        r"definition\.constants\[1\]\.name",
    ),
    "a name of a megabyte": (
        lambda m: setattr(m.definition.constants[0], "name", "x" * 2**20),
        r"definition\.constants\[0\]\.name: found 1048576 characters",
    ),
    "a dimension that no input has": (
        lambda m: m.definition.dims.add(name="ghost", min=1, max=2),
        r"definition\.dims: found \['batch', 'ghost'\]",
    ),
    "a dimension without a range": (
        lambda m: setattr(m.definition.dims[0], "max", 1),
        r"definition\.dims\[0\]: found 'batch' from 1 to 1",
    ),
    "a tensor larger than memory": (
        lambda m: setattr(m.definition.inputs[0].axes[2], "fixed", 2**61),
        r"definition\.(inputs|nodes)",
    ),
    "a target outside the folder": (
        lambda m: m.targets.add(backend="aoti", requirement="x", path="targets/../../x.so", sha256=b"\0" * 32),
        r"targets\[0\]\.path: found 'targets/\.\./\.\./x\.so'",
    ),
    "a target with half a digest": (
        lambda m: m.targets.add(backend="aoti", requirement="x", path="targets/x", sha256=b"\0" * 16),
        r"targets\[0\]\.sha256: found 16 bytes",
    ),
    "a figure with two sizes of one dimension": (
        lambda m: m.figures[0].sizes.add(dim="batch", size=3),
        r"figures\[0\]\.sizes: found \['batch', 'batch'\]",
    ),
    "a reason nobody gave": (
        lambda m: m.passes[0].refusals.add(site="x", reason="because", detail=""),
        r"passes\[0\]\.refusals\[0\]\.reason: found 'because'",
    ),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_lie_is_refused_with_its_path(eager_program: compiler.Program, lie: str) -> None:
    message = message_of(eager_program)
    tell, fault = LIES[lie]
    tell(message)

    with pytest.raises(compiler.InvalidProgramError, match=fault):
        read(framing.frame(message))


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda data: b"PK" + data[2:], r"header\.magic"),
        (lambda data: data[:-1], r"header\.length"),
        (lambda data: data + b"\0", r"header\.length"),
        (lambda data: data[:8] + (2**40).to_bytes(8, "little") + data[16:], r"header\.length: found 1099511627776"),
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], r"trailer\.sha256"),
        (lambda data: b"", r"header\.magic"),
    ],
)
def test_a_broken_frame_is_refused(
    eager_program: compiler.Program, spoil: Callable[[bytes], bytes], fault: str
) -> None:
    data = framing.frame(message_of(eager_program))

    with pytest.raises(compiler.InvalidProgramError, match=fault):
        read(spoil(data))


def test_an_unknown_field_is_refused_at_any_depth(eager_program: compiler.Program) -> None:
    body = framing.frame(message_of(eager_program))[16:-32]
    dims = pb.Dim(name="x", min=1, max=2).SerializeToString() + b"\x7a\x01\x00"  # field 15
    inner = b"\x0a" + bytes([len(dims)]) + dims

    with pytest.raises(compiler.InvalidProgramError, match=r"program\.definition\.dims\[0\]: found unknown field 15"):
        read(framed(b"\x0a" + bytes([len(inner)]) + inner + body))


def test_another_encoding_of_the_same_program_is_refused(eager_program: compiler.Program) -> None:
    message = message_of(eager_program)
    backend = b"\x12\x05eager"
    body = message.SerializeToString(deterministic=True)

    with pytest.raises(compiler.InvalidProgramError, match="canonical"):
        read(framed(backend + body))


def test_a_flood_of_messages_is_refused_before_it_is_parsed() -> None:
    flood = b"\x22\x00" * (framing.MAX_MESSAGES + 1)  # empty passes

    with pytest.raises(compiler.InvalidProgramError, match="more than 500000 messages"):
        read(framed(flood))


def _fields(message: object, found: list[tuple[object, object, int | None]]) -> list[tuple[object, object, int | None]]:
    """Every scalar in the message: (message, field, index in a repeated field or None)."""
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.is_repeated:
            for index, item in enumerate(value):
                if field.message_type is not None:
                    _fields(item, found)
                else:
                    found.append((message, field, index))
        elif field.message_type is not None:
            _fields(value, found)
        else:
            found.append((message, field, None))
    return found


_NUMBERS = st.sampled_from([0, 1, 2, 3, 7, 8, 17, 255, 2**31 - 1, 2**32 - 1])
_TEXTS = st.sampled_from(["", "x", "aten.relu.default", "aten.clone.default", "int.mul", "batch", "\0", "é" * 600])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_changed_value_is_refused_with_a_path_or_makes_another_program(
    eager_program: compiler.Program, data: st.DataObject
) -> None:
    message = message_of(eager_program)
    message.ClearField("figures")
    places = _fields(message, [])
    for _ in range(data.draw(st.integers(1, 3))):
        owner, field, index = places[data.draw(st.integers(0, len(places) - 1))]
        kind = field.cpp_type  # type: ignore[attr-defined]
        if kind == field.CPPTYPE_STRING:  # type: ignore[attr-defined]
            text = data.draw(_TEXTS)
            value: object = text.encode() if field.type == field.TYPE_BYTES else text  # type: ignore[attr-defined]
        elif kind == field.CPPTYPE_BOOL:  # type: ignore[attr-defined]
            value = data.draw(st.booleans())
        elif kind == field.CPPTYPE_DOUBLE:  # type: ignore[attr-defined]
            value = data.draw(st.sampled_from([0.0, -1.0, 1e300, float("inf"), float("nan")]))
        elif kind == field.CPPTYPE_ENUM:  # type: ignore[attr-defined]
            value = data.draw(st.sampled_from([0, 1, 2, 6, 9, 50]))
        else:
            value = data.draw(_NUMBERS)
        if index is None:
            setattr(owner, field.name, value)  # type: ignore[attr-defined]
        else:
            getattr(owner, field.name)[index] = value  # type: ignore[attr-defined]

    path = fault_of(framing.frame(message))

    assert path is None or path.startswith(("definition", "targets", "passes", "figures", "program"))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_changed_bytes_are_refused_or_are_canonical(eager_program: compiler.Program, data: st.DataObject) -> None:
    body = bytearray(message_of(eager_program).SerializeToString(deterministic=True))
    start = data.draw(st.integers(0, len(body) - 1))
    body[start : start + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))

    path = fault_of(framed(bytes(body)))

    if path is None:
        assert framing.unframe(framed(bytes(body))).SerializeToString(deterministic=True) == bytes(body)


def with_package(program: compiler.Program, folder: Path, content: bytes) -> Path:
    message = message_of(program)
    message.targets.add(
        backend="aoti",
        requirement="x86-64-v3",
        torch_version="2.13.0",
        path="targets/code.pt2",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).digest(),
    )
    (folder / "targets").mkdir()
    (folder / "program.pb").write_bytes(framing.frame(message))
    (folder / "targets" / "code.pt2").write_bytes(content)
    return folder


@pytest.mark.parametrize("spoil", [lambda data: data[:-1] + b"!", lambda data: data[:-1], lambda data: data + b"!"])
def test_a_package_with_other_bytes_is_refused(
    eager_program: compiler.Program, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    folder = with_package(eager_program, tmp_path, b"native code")
    compiler.load(folder)
    package = folder / "targets" / "code.pt2"
    package.write_bytes(spoil(package.read_bytes()))

    with pytest.raises(compiler.InvalidProgramError, match=r"targets/code\.pt2|code\.pt2"):
        compiler.load(folder)


def test_a_package_that_is_a_link_is_refused(eager_program: compiler.Program, tmp_path: Path) -> None:
    folder = with_package(eager_program, tmp_path, b"native code")
    package = folder / "targets" / "code.pt2"
    package.rename(tmp_path / "elsewhere")
    package.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(compiler.CorruptPackageError, match="no plain file"):
        compiler.load(folder)


def test_a_package_that_is_missing_is_refused(eager_program: compiler.Program, tmp_path: Path) -> None:
    folder = with_package(eager_program, tmp_path, b"native code")
    (folder / "targets" / "code.pt2").unlink()

    with pytest.raises(compiler.CorruptPackageError, match="no plain file"):
        compiler.load(folder)
