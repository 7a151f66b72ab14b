"""Copies of storages at one moment, in memory that stays warm for the next one."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from ckpt.saving.memory import BLOCK_BYTES, Source, memory_of

_ALIGNED_BYTES = 64  # where a copy starts: a cache line of its own


class Arena:
    """Memory for one snapshot at a time; it grows to the largest one and is kept.

    Fresh memory is what makes a first copy slow: the kernel clears each page when it is touched.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def copy(self, sources: Sequence[Source]) -> tuple[Source, ...]:
        """The same storages as they are now; the copies before are overwritten.

        What lies on a device is ordered after the work on its current stream and has arrived when this returns.
        """
        sizes = [-(-source.size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for source in sources]
        starts = [0, *accumulate(sizes)]
        has_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if self._memory.numel() < starts[-1]:
            self._memory = torch.empty(0, dtype=torch.uint8)  # let go of the old before the new is there
            self._memory = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=has_gpu)
        copies = []
        for source, start in zip(sources, starts, strict=False):
            room = self._memory[start : start + source.size_bytes]
            _fill(room, source)
            copies.append(Source(size_bytes=source.size_bytes, blocks=partial(_blocks, room)))
        if has_gpu:
            torch.cuda.synchronize()
        return tuple(copies)


def _fill(room: Tensor, source: Source) -> None:
    if not source.size_bytes:
        return
    if source.flat is not None:
        room.copy_(source.flat(), non_blocking=True)
        return
    view, done = memory_of(room), 0
    for block in source.blocks():
        view[done : done + len(block)] = block
        done += len(block)


def _blocks(room: Tensor) -> Iterator[memoryview]:
    view = memory_of(room)
    for start in range(0, len(view), BLOCK_BYTES):
        yield view[start : start + BLOCK_BYTES]
