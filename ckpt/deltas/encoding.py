"""Encode the frames of a delta by all cores: each by the codec that is smallest on a sample of it."""

import math
import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple

from ckpt.deltas.codecs import codec, moved
from ckpt.deltas.delta import Frame
from ckpt.deltas.notes import Notes
from ckpt.disk.folder import forget
from ckpt.format.digests import sha256

SAMPLE_BYTES = 64 << 10
_WINDOW_BYTES = 4 << 10
_AHEAD_BYTES = 64 << 20  # of base and target, given to the encoders and not yet written: each takes a few times as much


class Elements(NamedTuple):
    """What a run of bytes consists of, as codecs are told: bytes of an element, bits below its exponent."""

    width: int
    mantissa_bits: int


BYTES = Elements(width=1, mantissa_bits=0)
NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of bytes to be encoded: of the target, made from one of the base.

    With ``gathered``, ``base`` are the bytes that these runs of the base give, which count from ``base_offset``.
    ``prove`` raises unless both sides are what their manifests state.
    """

    base: memoryview
    target: memoryview
    offset: int
    base_offset: int
    elements: Elements
    gathered: moved.Runs | None = None
    prove: Callable[[], None] = lambda: None


class FrameWriter:
    """Has frames encoded by all cores and appends them to a patch file in their order."""

    def __init__(self, file: BinaryIO, allowed: Collection[str], notes: Notes) -> None:
        self._file, self._notes = file, notes
        self._allowed = {*allowed, "raw"}
        self._frames: list[Frame] = []
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ckpt-encode")
        self._waiting: deque[tuple[Run, Future[tuple[Frame, bytes]]]] = deque()
        self._bytes = 0  # of what is waiting

    def __enter__(self) -> "FrameWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def may_use(self, name: str) -> bool:
        return name in self._allowed

    def write(self, run: Run, candidates: Sequence[str]) -> int:
        """Have a run proved and encoded by the allowed candidate that is smallest on a sample.

        Runs whose frames are in the file already, from a writer that was killed, come first and are taken as they are.

        Returns:
            The number of its frame.

        Raises:
            CorruptChunkError: an earlier run is not what its manifest states.
        """
        known = self._notes.take(run.offset, len(run.target))
        if known is not None:
            self._frames.append(known)
            return len(self._frames) - 1
        size = len(run.base) + len(run.target)
        while self._waiting and (self._waiting[0][1].done() or self._bytes + size > _AHEAD_BYTES):
            self._append()
        self._waiting.append((run, self._pool.submit(self._encoded, run, candidates)))
        self._bytes += size
        return len(self._frames) + len(self._waiting) - 1

    def written(self) -> Sequence[Frame]:
        """All frames, when the last one is in the file; errors are those of :meth:`write`."""
        while self._waiting:
            self._append()
        return self._frames

    def _append(self) -> None:
        run, future = self._waiting.popleft()
        frame, encoded = future.result()
        self._bytes -= len(run.base) + len(run.target)
        self._frames.append(replace(frame, patch_offset=self._file.tell()))
        self._file.write(encoded)
        self._notes.add(self._frames[-1])

    def _encoded(self, run: Run, candidates: Sequence[str]) -> tuple[Frame, bytes]:
        """The frame but for its place in the patch; ``raw`` where that is smaller still."""
        run.prove()
        name = _smallest(run, [candidate for candidate in candidates if candidate in self._allowed])
        encoded = codec(name).encode(run.base, run.target, **run.elements._asdict())
        base_size = len(run.base)
        if run.gathered is not None and name != "raw":
            name, encoded, base_size = "moved", moved.around(run.gathered, name, encoded), run.gathered.end
        plain = codec("raw").encode(run.base, run.target, width=1) if len(encoded) > len(run.target) else None
        if plain is not None and len(plain) < len(encoded):
            name, encoded = "raw", plain
        frame = Frame(
            codec=name,
            offset=run.offset,
            size=len(run.target),
            base_offset=0 if name == "raw" else run.base_offset,
            base_size=0 if name == "raw" else base_size,
            width=run.elements.width,
            patch=0,
            patch_offset=0,
            encoded_size=len(encoded),
            sha256=sha256(encoded),
            reversible=codec(name).REVERSIBLE,
        )
        forget(run.base)
        forget(run.target)
        return frame, encoded


# What a byte by this codec counts for: one that decodes five times as slowly is to be worth it.
_COST = {"contextual": 1.03}
# Samples flatter ``sparse`` beside ``planes`` by 2 to 5 % (bfloat16, 30 to 80 % changed by a unit), and where most
# elements changed it encodes three times as slowly.
_SPARSE_WINS_BY = 1.05


def _smallest(run: Run, candidates: Sequence[str]) -> str:
    if len(candidates) == 1:
        return candidates[0]
    base, target = _sample(run.base, run.elements.width), _sample(run.target, run.elements.width)
    costs = {
        name: _COST.get(name, 1) * len(codec(name).encode(base, target, **run.elements._asdict()))
        for name in candidates
    }
    name = min(costs, key=lambda name: costs[name])
    if name == "sparse" and costs.get("planes", math.inf) <= _SPARSE_WINS_BY * costs[name]:
        return "planes"
    return name


def _sample(view: memoryview, width: int) -> memoryview:
    """64 KiB of a run, in windows spread evenly over it; a short run as it is."""
    if len(view) <= SAMPLE_BYTES:
        return view
    windows = SAMPLE_BYTES // _WINDOW_BYTES
    step = (len(view) - _WINDOW_BYTES) // (windows - 1) // width * width
    return memoryview(b"".join(view[index * step : index * step + _WINDOW_BYTES] for index in range(windows)))
