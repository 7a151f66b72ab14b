"""The schema of programs as text: a line for everything that a stored program depends on.

    python -m tests.compiler.schema          # writes docs/formats/program.schema.txt, unless that would break programs

A new field or value is a new line. A line that goes or changes (a number, a kind, a label) makes programs of before
unreadable, or readable as something else.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from compiler.proto import program_pb2 as pb

DUMP = Path(__file__).resolve().parents[2] / "docs" / "formats" / "program.schema.txt"


def schema() -> FileDescriptorProto:
    """What the generated code says now."""
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    return file


def lines(file: FileDescriptorProto) -> list[str]:
    """In the schema's order, fields by number."""
    found = [f"package {file.package} {file.syntax}"]
    for message in file.message_type:
        found += _message(message)
    for enum in file.enum_type:
        found += [f"{enum.name}.{value.name} = {value.number}" for value in sorted(enum.value, key=lambda v: v.number)]
    return found


def broken(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """The lines of before that no longer hold."""
    return [line for line in before if line not in set(now)]


def _message(message: DescriptorProto) -> Iterator[str]:
    for field in sorted(message.field, key=lambda field: field.number):
        kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        label = FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()
        of = f" {field.type_name}" if field.type_name else ""
        choice = f" in {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
        yield f"{message.name}.{field.name} = {field.number}: {label} {kind}{of}{choice}"


def main() -> int:
    now = lines(schema())
    lost = broken(DUMP.read_text().splitlines() if DUMP.exists() else [], now)
    if lost:
        print("programs of before could not be read: these no longer hold\n  " + "\n  ".join(lost), file=sys.stderr)
        return 1
    DUMP.write_text("\n".join(now) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
