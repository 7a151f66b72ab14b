"""Rows that moved: runs of the base put where they lie in the target, then the difference from that by another codec.

A frame has one run of the base, but rows may come from many places of it: what was inserted, removed or put in another
order. The runs make a base as long as the target, zeros where nothing is known, and ``contextual``, ``sparse`` or
``planes`` code what is left: rows that moved and changed a little cost no more than where they were.

Layout: u8 number of the codec within, u32 count of runs; a stream: the byte planes of 16 bytes for each run (u32 bytes
since the last one, u32 its size, u64 where in the base it begins); then what the codec within made.
"""

import struct
from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckpt.deltas.codecs.streams import Reader, join
from ckpt.deltas.sides import Bytes
from ckpt.disk.folder import forget
from ckpt.format.digests import CHUNK_BYTES

REVERSIBLE = False
WITHIN = {"contextual": 1, "sparse": 2, "planes": 3}
_MODULES = {number: f"ckpt.deltas.codecs.{name}" for name, number in WITHIN.items()}
_HEAD = struct.Struct("<BI")
_RUN = np.dtype([("gap", "<u4"), ("size", "<u4"), ("source", "<u8")])
_BYTES_PER_RUN = 64  # of a frame, at least, but for the first and the last
_WINDOW_BYTES = 4 << 20
_Window = tuple[memoryview, int, NDArray[np.int64]]


class Runs(NamedTuple):
    """Where the bytes of a target lie in its base; ascending, without overlap; what none names is new."""

    places: NDArray[np.int64]  # in the target
    sizes: NDArray[np.int64]
    sources: NDArray[np.int64]  # in the base

    @property
    def begin(self) -> int:
        """The first byte of the base that is needed; 0 where none is."""
        return int(self.sources.min()) if len(self.sources) else 0

    @property
    def end(self) -> int:
        """The end of the last one."""
        return int((self.sources + self.sizes).max(initial=0))

    def counted_from(self, begin: int) -> "Runs":
        """The same of a base that begins there."""
        return self._replace(sources=self.sources - begin)

    def chunks(self) -> set[int]:
        """Chunks of the base that are needed."""
        first, last = self.sources // CHUNK_BYTES, (self.sources + self.sizes - 1) // CHUNK_BYTES
        longest = int((last - first).max(initial=0)) + 1
        return set(np.unique(np.minimum(first[:, None] + np.arange(longest), last[:, None])).tolist())


def windows(view: Bytes, places: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[_Window]:
    """Parts of a view that hold runs of it, in any order; ascending, and let go of when the next one is asked for.

    Of each its bytes, where it begins, and which runs lie in it.
    """
    order = np.argsort(places, kind="stable")
    ascending = places[order]
    first = 0
    while first < len(order):
        begin = int(ascending[first])
        last = int(np.searchsorted(ascending, begin + _WINDOW_BYTES))
        which = order[first:last]
        part = view[begin : int((places[which] + sizes[which]).max())]
        yield part, begin, which
        forget(part)
        first = last


def gathered(base: Bytes, runs: Runs, size: int) -> bytearray:
    """The runs in their places among ``size`` zeros."""
    result = bytearray(size)
    into = memoryview(result)
    for part, begin, which in windows(base, runs.sources, runs.sizes):
        for place, length, source in zip(*(column[which].tolist() for column in runs), strict=True):
            into[place : place + length] = part[source - begin : source - begin + length]
    return result


def around(runs: Runs, within: str, encoded: bytes) -> bytes:
    """The encoded bytes of a frame from those that a codec made with :func:`gathered` as its base."""
    records = np.empty(len(runs.places), _RUN)
    records["gap"] = np.diff(runs.places, prepend=0)
    records["gap"][1:] -= runs.sizes[:-1].astype(np.uint32)
    records["size"], records["source"] = runs.sizes, runs.sources
    planes = records.view(np.uint8).reshape(-1, _RUN.itemsize).T
    return _HEAD.pack(WITHIN[within], len(records)) + join([planes.tobytes()]) + encoded


def encode(base: Bytes, target: memoryview, *, width: int, mantissa_bits: int = 0) -> bytes:
    """As if nothing had moved: a writer that knows better uses :func:`gathered` and :func:`around`."""
    common = min(len(base), len(target))
    runs = Runs(*(np.array([number] if common else [], np.int64) for number in (0, common, 0)))
    planes = import_module(_MODULES[WITHIN["planes"]])
    made = planes.encode(memoryview(gathered(base, runs, len(target))), target, width=width)
    return around(runs, "planes", made)


def decode(base: Bytes, encoded: memoryview, *, width: int, size: int) -> bytes | bytearray:
    """Gather, then decode what is within; see :class:`ckpt.deltas.codecs.Codec`."""
    if len(encoded) < _HEAD.size:
        raise ValueError(f"{len(encoded)} bytes")
    number, count = _HEAD.unpack_from(encoded)
    if number not in _MODULES or count > size // _BYTES_PER_RUN + 2:
        raise ValueError(f"{count} runs for {size} bytes, codec {number} within")
    reader = Reader(encoded[_HEAD.size :])
    planes = np.frombuffer(reader.take(_RUN.itemsize * count), np.uint8).reshape(_RUN.itemsize, count)
    records = np.ascontiguousarray(planes.T).view(_RUN).reshape(-1)
    sizes, starts = records["size"].astype(np.int64), records["source"]
    ends = np.cumsum(records["gap"].astype(np.int64) + sizes)
    if (starts > len(base)).any() or (starts.astype(np.int64) + sizes > len(base)).any():
        raise ValueError(f"a run beyond the base's {len(base)} bytes")
    if (sizes == 0).any() or (count and ends[-1] > size):
        raise ValueError(f"a run of nothing, or beyond {size} bytes")
    own = gathered(base, Runs(ends - sizes, sizes, starts.astype(np.int64)), size)
    made: bytes | bytearray = import_module(_MODULES[number]).decode(
        memoryview(own), reader.rest(), width=width, size=size
    )
    return made
