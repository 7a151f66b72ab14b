"""Frames in one place, each decoded from what the ones before it made: how deltas are put together.

Layout: u8 count of steps, at most 64; for each a u8 length of a codec's name and the name, then u8 width, u32 first
byte and u32 size of what it reads, u32 first byte and u32 size of what it writes, u8 1 where that is all there is after
it, else 0, u32 size of its encoded bytes, and these.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ckpt.deltas import codecs
from ckpt.deltas.codecs.integers import WIDTHS

REVERSIBLE = False
MAX_STEPS = 64
_MAX_BYTES = 16 << 20  # of what a step makes: that of a frame
_HEAD = struct.Struct("<BIIIIBI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One frame: by which codec, what of the bytes so far it reads, which of them it writes; ``whole``: all of them."""

    codec: str
    width: int
    read_offset: int
    read_size: int
    offset: int
    size: int
    whole: bool
    encoded: bytes | memoryview


def join(steps: Sequence[Step]) -> bytes:
    """The encoded bytes of a chain."""
    parts: list[bytes | memoryview] = [bytes([len(steps)])]
    for step in steps:
        name = step.codec.encode("ascii")
        head = _HEAD.pack(
            step.width, step.read_offset, step.read_size, step.offset, step.size, step.whole, len(step.encoded)
        )
        parts += [bytes([len(name)]), name, head, step.encoded]
    return b"".join(parts)


def encode(base: memoryview, target: memoryview, *, width: int, mantissa_bits: int = 0) -> bytes:
    """A chain of one: what is written whole."""
    raw = codecs.codec("raw").encode(base, target, width=1)
    step = Step(codec="raw", width=1, read_offset=0, read_size=0, offset=0, size=len(target), whole=True, encoded=raw)
    return join([step])


def decode(base: memoryview, encoded: memoryview, *, width: int, size: int) -> bytearray:
    """Step by step, beginning with the base, or with zeros where it is empty; see :class:`ckpt.deltas.codecs.Codec`."""
    made = bytearray(base) if len(base) else bytearray(size)
    for step in steps_of(encoded):
        if step.read_offset + step.read_size > len(made):
            raise ValueError(f"a step that reads to {step.read_offset + step.read_size} of {len(made)} bytes")
        read = memoryview(made)[step.read_offset : step.read_offset + step.read_size]
        part = codecs.codec(step.codec).decode(read, memoryview(step.encoded), width=step.width, size=step.size)
        read.release()
        if len(part) != step.size or (not step.whole and step.offset + step.size > len(made)):
            raise ValueError(f"a step that makes {len(part)} bytes at {step.offset} of {len(made)}")
        if step.whole:
            made = bytearray(part)
        else:
            made[step.offset : step.offset + step.size] = part
    return made


def steps_of(encoded: memoryview) -> list[Step]:
    """The inverse of :func:`join`.

    Raises:
        ValueError: the encoded bytes do not make sense.
    """
    if not len(encoded) or not 1 <= encoded[0] <= MAX_STEPS:
        raise ValueError(f"no chain of 1 to {MAX_STEPS} steps")
    steps, rest = [], encoded[1:]
    for _ in range(encoded[0]):
        length = rest[0] if len(rest) else 0
        name, rest = bytes(rest[1 : 1 + length]).decode("ascii", "replace"), rest[1 + length :]
        if name not in codecs.CODECS or name == "chain" or len(rest) < _HEAD.size:
            raise ValueError(f"a step by '{name[:40]}'")
        width, read_offset, read_size, offset, size, whole, stored = _HEAD.unpack_from(rest)
        data, rest = rest[_HEAD.size : _HEAD.size + stored], rest[_HEAD.size + stored :]
        if width not in WIDTHS:
            raise ValueError(f"a step of elements of {width} bytes")
        if len(data) != stored or whole > 1 or (whole and offset) or not 0 < size <= _MAX_BYTES:
            raise ValueError(f"a step of {len(data)} bytes for {size} at {offset}")
        if codecs.codec(name).REVERSIBLE and read_size != size:
            raise ValueError(f"a step by '{name}' that reads {read_size} bytes for {size}")
        steps.append(
            Step(
                codec=name,
                width=width,
                read_offset=read_offset,
                read_size=read_size,
                offset=offset,
                size=size,
                whole=bool(whole),
                encoded=data,
            )
        )
    if len(rest):
        raise ValueError(f"{len(rest)} bytes after the last step")
    return steps
