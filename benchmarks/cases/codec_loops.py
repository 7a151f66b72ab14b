"""The loops of codecs alone, as one thread runs them: nothing is read, proved or written meanwhile.

Random bfloat16 in memory, of which some elements moved by a unit, in frames about as large as ``ckpt.diff`` makes them.
The clock is the processor's, so that other work on the machine counts little.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases.weights import bfloat16_weights, stepped
from benchmarks.plan import Call, Figures
from ckpt.deltas.codecs import codec
from ckpt.saving.memory import memory_of

_WIDTH, _MANTISSA_BITS = 2, 7  # of bfloat16

Pair = tuple[memoryview, memoryview]


@contextmanager
def prepare(*, work: Path, shared: Path) -> Iterator[Call]:
    """Each case makes its own weights."""
    yield Call(run=lambda: None)


@contextmanager
def both_ways(
    *, work: Path, shared: Path, codec_name: str, percent: int, size_mib: int, frame_mib: int
) -> Iterator[Call]:
    """Encode all frames; then, outside the clock of the run, decode them. Figures: bytes of the target by second."""
    frames = _frames(percent=percent, size_mib=size_mib, frame_mib=frame_mib)
    one, encoded, spent_s = codec(codec_name), list[bytes](), list[float]()
    one.encode(*frames[0], width=_WIDTH, mantissa_bits=_MANTISSA_BITS)  # compiles what has to be

    def encode() -> None:
        for base, target in frames:
            encoded.append(one.encode(base, target, width=_WIDTH, mantissa_bits=_MANTISSA_BITS))

    def decode() -> None:
        for (base, target), data in zip(frames, encoded, strict=True):
            made = one.decode(base, memoryview(data), width=_WIDTH, size=len(target))
            assert len(made) == len(target)

    def figures() -> Figures:
        size_gb = (size_mib << 20) / 1e9
        made = one.decode(frames[0][0], memoryview(encoded[0]), width=_WIDTH, size=len(frames[0][1]))
        assert bytes(made) == bytes(frames[0][1]), f"{codec_name} gave other bytes back"
        return {
            "encode_gb_per_processor_s": size_gb / spent_s[0],
            "decode_gb_per_processor_s": size_gb / _processor_s(decode),
            "ratio": (size_mib << 20) / sum(map(len, encoded)),
        }

    yield Call(run=lambda: spent_s.append(_processor_s(encode)), figures=figures)


@contextmanager
def sha256(*, work: Path, shared: Path, percent: int, size_mib: int, frame_mib: int) -> Iterator[Call]:
    """hashlib over the frames of the target: what proving them costs beside."""
    frames, spent_s = _frames(percent=percent, size_mib=size_mib, frame_mib=frame_mib), list[float]()

    def hash_all() -> None:
        for _, target in frames:
            hashlib.sha256(target)

    yield Call(
        run=lambda: spent_s.append(_processor_s(hash_all)),
        figures=lambda: {"gb_per_processor_s": (size_mib << 20) / 1e9 / spent_s[0]},
    )


def _frames(*, percent: int, size_mib: int, frame_mib: int) -> list[Pair]:
    base = bfloat16_weights(size_mib << 20, seed=0)
    views = [memory_of(weights) for weights in (base, stepped(base, share=percent / 100))]
    size = frame_mib << 20
    return [(views[0][at : at + size], views[1][at : at + size]) for at in range(0, size_mib << 20, size)]


def _processor_s(run: Callable[[], object]) -> float:
    started_s = time.thread_time()
    run()
    return time.thread_time() - started_s
