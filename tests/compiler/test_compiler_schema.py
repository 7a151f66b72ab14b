"""The schema grows and never changes: a program of today is read by every later version."""

from collections.abc import Callable

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from tests.compiler.schema import DUMP, broken, lines, schema


def message(file: FileDescriptorProto, name: str) -> DescriptorProto:
    return next(entry for entry in file.message_type if entry.name == name)


def field(file: FileDescriptorProto, owner: str, name: str) -> FieldDescriptorProto:
    return next(entry for entry in message(file, owner).field if entry.name == name)


def test_the_schema_is_as_it_was_dumped_or_has_grown() -> None:
    assert broken(DUMP.read_text().splitlines(), lines(schema())) == []


def test_what_is_new_stands_in_the_dump() -> None:
    assert lines(schema()) == DUMP.read_text().splitlines(), "run python -m tests.compiler.schema"


CHANGES: dict[str, Callable[[FileDescriptorProto], object]] = {
    "another number": lambda file: setattr(field(file, "Step", "value"), "number", 9),
    "another kind": lambda file: setattr(field(file, "Step", "value"), "type", FieldDescriptorProto.TYPE_FLOAT),
    "another label": lambda file: setattr(field(file, "Step", "name"), "label", FieldDescriptorProto.LABEL_REPEATED),
    "another message": lambda file: setattr(field(file, "Output", "spec"), "type_name", ".treering.program.v1.Literal"),
    "another name": lambda file: setattr(field(file, "Step", "value"), "name", "number"),
    "out of its choice": lambda file: field(file, "Atom", "flag").ClearField("oneof_index"),
    "a field removed": lambda file: message(file, "Dim").field.pop(),
    "a message removed": lambda file: file.message_type.remove(message(file, "Target")),
    "an enum's value moved": lambda file: setattr(file.enum_type[0].value[3], "number", 33),
    "an enum's value removed": lambda file: file.enum_type[1].value.pop(),
    "another package": lambda file: setattr(file, "package", "treering.program.v2"),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_change_that_breaks_programs_of_before_is_seen(change: str) -> None:
    file = schema()
    CHANGES[change](file)

    assert broken(lines(schema()), lines(file)) != []


def test_a_new_field_a_new_message_and_a_new_value_break_nothing() -> None:
    file = schema()
    message(file, "Step").field.add(
        name="axis", number=6, type=FieldDescriptorProto.TYPE_UINT32, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    file.message_type.add(name="Plan")
    file.enum_type[1].value.add(name="OPERATION_SUM", number=10)

    assert broken(lines(schema()), lines(file)) == []
    assert len(lines(file)) == len(lines(schema())) + 2
