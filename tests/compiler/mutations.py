"""Mutated programs, and what an accepted one has to prove.

``mutate`` changes a sealed program in one to three places: a value, an item of a list, another kind of value in a
choice, or raw bytes. ``judge`` reads it as ``compiler.load`` does. A mutant may be refused with a path; one that is
accepted must be what it says: it survives decoding and encoding, and on real tensors every output has the dtype and
shape that it states, at both ends of every dimension.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, Final

import torch
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from torch import Tensor, nn
from torch.nn import functional

import compiler
from compiler import decode, dtypes, encode, framing
from compiler.constants import fill, views
from compiler.definition import Definition
from compiler.interpreter import Interpreter
from compiler.proto import program_pb2 as pb
from compiler.validation import OnMeta, validate

BATCH: Final = compiler.Dim(name="batch", max=3)
NUMBERS: Final = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 64, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**61, 2**63 - 1)
SIGNED: Final = (-(2**63), -(2**31), -7, -2, -1, *NUMBERS)
REALS: Final = (0.0, -0.0, 1.0, -1.0, 1e-5, 0.5, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS: Final = ("", "x", "batch", "none", "tanh", "floor", "valid", "same", "\0", "é" * 3, "x" * 2000)
# What depends on the values of tensors, which no program holds, is found when it runs.
OF_VALUES: Final = ("index out of range", "out of bounds", "ZeroDivisionError")


class _Images(nn.Module):
    """Convolutions of two kinds, norms, a branch, pooling and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.up = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=2, groups=2), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 3)
        self.register_buffer("temperature", torch.tensor([0.5]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first(x))
        y = functional.max_pool2d(functional.silu(self.up(y + y.mean())), 2)
        return functional.log_softmax(self.head(torch.cat([y, y * 2], 1)[:, :4].mean((2, 3))) * self.temperature, 1)


class _Words(nn.Module):
    """A table, attention with a mask, a norm, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.norm = nn.LayerNorm(8)
        self.wide = nn.Linear(8, 12)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.table(ids))
        heads = x.unflatten(2, (2, 4)).transpose(1, 2)
        bias = (ids == 0)[:, None, None, :].to(x.dtype) * -1e4
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)
        return functional.gelu(self.wide(mixed.transpose(1, 2).flatten(2))), ids.float().mean(1)


@cache
class _Places(nn.Module):
    """Places looked up along one axis and two, masks joined by bits, and tensors made like others."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, ids: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        rows, places = torch.arange(ids.shape[0]), torch.arange(ids.shape[1])
        mask = kept.bool()[rows[:, None], places[None, :]]
        found = self.table(ids)[:, places][:, :, None]
        added = found.new_full((1,), 2.5) + ids.new_zeros((2, 3), dtype=torch.float32).sum()
        mask = (places >= 0) & mask | mask.new_ones(())
        return found * mask[..., None, None] + added, found[:, None, places]


def victims() -> tuple[bytes, ...]:
    """Bodies of good programs, between them with most forms that a program can have."""
    torch.manual_seed(0)
    images = compiler.compile(_Images().eval(), (torch.randn(2, 2, 4, 4),), dynamic={"x": {0: BATCH}}, backend="eager")
    words = compiler.compile(
        _Words().eval(), (torch.randint(0, 7, (2, 5)),), dynamic={"ids": {0: BATCH}}, backend="eager"
    )
    asked = (torch.randint(0, 9, (2, 5)), torch.ones(2, 5, dtype=torch.int64))
    by_rows = {"ids": {0: BATCH}, "kept": {0: BATCH}}
    places = compiler.compile(_Places().eval(), asked, dynamic=by_rows, backend="eager")
    bodies = []
    for program in (images, words, places):
        message = encode.encode_program(
            program.definition, backend="aoti", targets=program.targets, report=program.report
        )
        del message.figures[2:]
        message.targets.add(
            backend="aoti",
            requirement="x86-64-v3",
            torch_version="2.13.0",
            path="targets/aoti-x86-64-v3.pt2",
            size_bytes=3,
            sha256=hashlib.sha256(b"abc").digest(),
        )
        bodies.append(message.SerializeToString(deterministic=True))
    return tuple(bodies)


def framed(body: bytes) -> bytes:
    """A body under the frame of ``program.pb``, with the digest that it has now."""
    return framing.MAGIC + len(body).to_bytes(8, "little") + body + hashlib.sha256(body).digest()


def mutate(body: bytes, choose: Random) -> bytes:
    """Another body, changed in one to three places."""
    if choose.random() < 0.1:
        return _other_bytes(body, choose)
    message = pb.Program.FromString(body)
    for _ in range(choose.randint(1, 3)):
        choose.choice((_change_value, _change_value, _change_value, _change_list, _change_choice))(message, choose)
    return message.SerializeToString(deterministic=True)


def judge(body: bytes) -> str | None:
    """The path of the fault, None for a program without one; any other error escapes, and so does a broken word."""
    try:
        message = framing.unframe(framed(body))
        definition = decode.decode_definition(message.definition)
        validate(definition)
        targets = decode.decode_targets(message)
        report = decode.decode_report(message)
    except compiler.InvalidProgramError as error:
        return error.path
    again = encode.encode_program(definition, backend=message.backend, targets=targets, report=report)
    assert again.SerializeToString(deterministic=True) == body, "decoding and encoding gave another program"
    for sizes in ({dim.name: dim.min for dim in definition.dims}, {dim.name: dim.max for dim in definition.dims}):
        if _elements(definition, sizes) <= 2**22:
            _run(definition, sizes)
    return None


def _elements(definition: Definition, sizes: dict[str, int]) -> int:
    """Elements of all tensors of a run, found without memory."""
    with torch.device("meta"), torch.no_grad(), OnMeta():  # type: ignore[no-untyped-call]
        values: list[Any] = [
            torch.empty(spec.at(sizes), dtype=dtypes.BY_NAME[spec.dtype]) for spec in definition.inputs
        ]
        values += [
            torch.empty_strided(entry.shape, entry.strides, dtype=dtypes.BY_NAME[entry.dtype])
            for entry in definition.constants
        ]
        total = sum(value.numel() for value in values)
        for _ in Interpreter(definition).steps(values):
            total += values[-1].numel() if isinstance(values[-1], Tensor) else 0
    return total


def _run(definition: Definition, sizes: dict[str, int]) -> None:
    tensors = {spec.name: torch.ones(spec.at({}), dtype=dtypes.BY_NAME[spec.dtype]) for spec in definition.requires}
    memory = views(definition.constants, None)
    fill(
        definition.constants, memory, tensors=tensors, requires=definition.requires,
        literals=definition.literals, changed=None,
    )  # fmt: skip
    inputs = [torch.zeros(spec.at(sizes), dtype=dtypes.BY_NAME[spec.dtype]) for spec in definition.inputs]
    try:
        with torch.no_grad():
            found = Interpreter(definition).run(inputs, [memory[entry.name] for entry in definition.constants])
    except (RuntimeError, IndexError) as error:
        if any(words in str(error) for words in OF_VALUES):
            return
        raise
    for value, output in zip(found, definition.outputs, strict=True):
        assert dtypes.NAME[value.dtype] == output.spec.dtype, f"{output.spec.name} is {value.dtype}"
        for size, stated, dim in zip(value.shape, output.spec.shape, output.spec.dims, strict=True):
            assert dim == "" or size == (stated if dim is None else sizes[dim]), f"{output.spec.name}: {value.shape}"


Place = tuple[Message, FieldDescriptor, int | None]


def _places(message: Message, found: list[Place]) -> list[Place]:
    """Every value below the message: (owner, field, index in a list or None)."""
    for field, value in message.ListFields():
        for index, item in enumerate(value) if field.is_repeated else ((None, value),):
            if field.message_type is None:
                found.append((message, field, index))
            else:
                _places(item, found)
    return found


def _messages(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if field.is_repeated else (value,):
                found += _messages(item)
    return found


def _change_value(message: Message, choose: Random) -> None:
    owner, field, index = choose.choice(_places(message, []))
    value = _value(field, choose, message)
    if index is None:
        setattr(owner, field.name, value)
    else:
        getattr(owner, field.name)[index] = value


def _change_list(message: Message, choose: Random) -> None:
    owner = choose.choice(_messages(message))
    fields = [field for field in owner.DESCRIPTOR.fields if field.is_repeated]
    if not fields:
        return
    field = choose.choice(fields)
    items = list(getattr(owner, field.name))
    fresh = field.message_type._concrete_class() if field.message_type else _value(field, choose, message)
    actions: dict[str, Callable[[], object]] = {
        "add": lambda: items.insert(choose.randint(0, len(items)), choose.choice([*items, fresh])),
        "drop": lambda: items and items.pop(choose.randrange(len(items))),
        "shuffle": lambda: choose.shuffle(items),
        "clear": items.clear,
    }
    kept = [item if field.message_type is None else _copy(item) for item in items]
    items[:] = kept
    actions[choose.choice(sorted(actions))]()
    owner.ClearField(field.name)
    getattr(owner, field.name).extend(items)


def _change_choice(message: Message, choose: Random) -> None:
    """Another member of a oneof, or none."""
    owners = [entry for entry in _messages(message) if entry.DESCRIPTOR.oneofs]
    owner = choose.choice(owners)
    (oneof,) = owner.DESCRIPTOR.oneofs
    field = choose.choice(oneof.fields)
    owner.ClearField(field.name)
    if field.message_type is not None:
        getattr(owner, field.name).SetInParent()
    elif choose.random() < 0.9:
        setattr(owner, field.name, _value(field, choose, message))


def _copy(message: Message) -> Message:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


def _value(field: FieldDescriptor, choose: Random, message: Message) -> object:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return choose.random() < 0.5
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return choose.choice(REALS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return choose.choice([*field.enum_type.values_by_number, 50])
        case FieldDescriptor.CPPTYPE_INT64:
            return choose.choice(SIGNED)
        case FieldDescriptor.CPPTYPE_UINT32:
            return choose.choice(NUMBERS) % 2**32 if choose.random() < 0.3 else choose.randrange(40)
        case FieldDescriptor.CPPTYPE_UINT64:
            return choose.choice(NUMBERS)
        case _ if field.type == FieldDescriptor.TYPE_BYTES:
            return choose.choice((b"", b"\0", b"\0\0\0\0", b"\xff" * 4, bytes(32), b"\0\0\x80\x7f"))
    return choose.choice((*TEXTS, *_texts(message)))


def _texts(message: Message) -> list[str]:
    """Every text that the program holds: names where other names belong are likelier to pass than noise."""
    texts: list[str] = []
    for owner, field, index in _places(message, []):
        if field.type == FieldDescriptor.TYPE_STRING:
            value = getattr(owner, field.name)
            texts.append(value if index is None else value[index])
    return texts


def _other_bytes(body: bytes, choose: Random) -> bytes:
    changed = bytearray(body)
    for _ in range(choose.randint(1, 3)):
        start = choose.randrange(len(changed))
        changed[start : start + choose.randint(0, 3)] = choose.randbytes(choose.randint(0, 3))
    return bytes(changed)
