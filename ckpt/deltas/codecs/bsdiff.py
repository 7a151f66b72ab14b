"""Moved or inserted bytes: Percival's bsdiff by ``bsdiff4.core``, in streams of our own.

Never its bz2 container, which unpacks without a bound. Streams after a u32 count of steps and a u32 count of extra
bytes: the steps (three numbers of 8 bytes, the highest bit their sign: bytes to add to the base, bytes to take as
they are, seek in the base), the differences, the extra bytes. Memory is about 17 times the base, so both sides are
bounded.

Source: Percival 2003, "Naive differences of executable code".
"""

import struct

import numpy as np
from bsdiff4 import core

from ckpt.deltas.codecs.streams import Reader, join

REVERSIBLE = False
MAX_BYTES = 8 << 20  # of base or target: diffing 8 MiB takes about 10 s and 140 MiB
_COUNTS = struct.Struct("<II")
_STEP_BYTES = 24
_BYTES_PER_STEP = 8  # a match that is not worth eight bytes more than the last one makes no step
_SIGN = 1 << 63


def encode(base: memoryview, target: memoryview, *, width: int, mantissa_bits: int = 0) -> bytes:
    steps, differences, extra = core.diff(bytes(base), bytes(target))
    return _COUNTS.pack(len(steps) // _STEP_BYTES, len(extra)) + join([steps, differences, extra])


def decode(base: memoryview, encoded: memoryview, *, width: int, size: int) -> bytes:
    """Follow the steps; see :class:`ckpt.deltas.codecs.Codec`."""
    if len(encoded) < _COUNTS.size or max(len(base), size) > MAX_BYTES:
        raise ValueError(f"{len(encoded)} bytes for {size} from {len(base)}, at most {MAX_BYTES}")
    count, extra_size = _COUNTS.unpack_from(encoded)
    if count > size // _BYTES_PER_STEP + 2 or extra_size > size:
        raise ValueError(f"{count} steps and {extra_size} extra bytes for {size} bytes")
    reader = Reader(encoded[_COUNTS.size :])
    steps = reader.take(_STEP_BYTES * count)
    _check(steps, base_size=len(base), size=size, extra_size=extra_size)
    differences = reader.take(size - extra_size)
    extra = reader.take(extra_size)
    reader.end()
    return bytes(core.patch(bytes(base), size, steps, differences, extra))


def _check(steps: bytes, *, base_size: int, size: int, extra_size: int) -> None:
    """Every step inside base and target; the C code behind ``patch`` is not asked to find out."""
    numbers = np.frombuffer(steps, "<u8").reshape(-1, 3)
    magnitudes = numbers & np.uint64(_SIGN - 1)
    if (magnitudes > 2 * MAX_BYTES).any() or (numbers[:, :2] >= _SIGN).any():
        raise ValueError("a step that is negative, or longer than any base")
    add, take, seek = np.where(numbers >= _SIGN, -magnitudes.astype(np.int64), magnitudes.astype(np.int64)).T
    ends = np.cumsum(add + seek) - seek  # where in the base each step stops adding
    reads = add > 0
    if ((ends - add < 0) | (ends > base_size))[reads].any():
        raise ValueError("a step outside the base")
    if add.sum() != size - extra_size or take.sum() != extra_size:
        raise ValueError(f"steps for {add.sum() + take.sum()} bytes where {size} belong")
