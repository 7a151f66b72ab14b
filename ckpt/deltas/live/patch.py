"""A staged update of live memory: applied, undone, confirmed."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor

from ckpt.deltas.live.memory import Live, LiveStorage
from ckpt.deltas.live.record import mark, write_record
from ckpt.deltas.live.writes import Write
from ckpt.disk.commit import remove_whole
from ckpt.errors import LiveChunkError
from ckpt.format.digests import CHUNK_BYTES, chunk_range, sha256, text
from ckpt.format.manifest import Manifest

_BLOCK_CHUNKS = 16  # hashed by one task


class Stage(StrEnum):
    """What was last begun, or done: the state word of a record."""

    STAGED = "staged"
    APPLYING = "applying"
    APPLIED = "applied"
    UNDOING = "undoing"
    UNDONE = "undone"


class LivePatch:
    """Values that turn live memory from one checkpoint into another, and back; :func:`ckpt.stage` makes one.

    ``apply`` and ``undo`` write absolute values: each may be called again, or after a part of the other. Whoever
    computes with the memory must not do so meanwhile.

    Attributes:
        base, target: The manifests of both ends; of ``target`` the tensors alone are brought into memory.
        state: What was last begun or done.
        folder: The record's, where :meth:`save` wrote one.
    """

    def __init__(
        self,
        *,
        base: Manifest,
        target: Manifest,
        tensors: Mapping[str, Live],
        storages: Sequence[LiveStorage],
        writes: Sequence[Write],
        state: Stage = Stage.STAGED,
        folder: Path | None = None,
    ) -> None:
        self.base, self.target, self.state, self.folder = base, target, state, folder
        self._tensors = tensors  # storages are known by address: these keep them
        self._storages, self._writes = storages, writes

    @property
    def size_bytes(self) -> int:
        """Positions, old and new values that are kept, on the devices of the tensors."""
        return sum(write.size_bytes for write in self._writes)

    def apply(self, *, threads: int | None = None) -> None:
        """Write the target's values.

        Args:
            threads: How many write to the host's memory at once, >= 1; as many as there are cores unless stated.
        """
        self._put(lambda write: write.new, Stage.APPLYING, Stage.APPLIED, threads)

    def undo(self, *, threads: int | None = None) -> None:
        """Write the base's values; as :meth:`apply`."""
        self._put(lambda write: write.old, Stage.UNDOING, Stage.UNDONE, threads)

    def _put(self, values: Callable[[Write], Tensor], begun: Stage, done: Stage, threads: int | None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; expected at least 1")
        self._mark(begun)
        launched = [write for write in self._writes if write.part.is_cuda]
        for write in launched:  # by one thread: several wait for each other
            write.put(values(write))
        written = [write for write in self._writes if not write.part.is_cuda]
        count = max(min(threads or os.cpu_count() or 1, len(written)), 1)

        def some(first: int) -> None:
            for write in written[first::count]:
                write.put(values(write))

        if count > 1:
            with ThreadPoolExecutor(count, thread_name_prefix="ckpt-live") as pool:
                list(pool.map(some, range(count)))
        else:
            some(0)
        for device in {write.part.device for write in launched}:
            torch.cuda.synchronize(device)
        self._mark(done)

    def _mark(self, state: Stage) -> None:
        self.state = state
        if self.folder is not None:
            mark(self.folder, state)

    def confirm(self) -> Manifest:
        """Hash all live memory by all cores and compare it with what the last call was to leave there.

        Returns:
            The manifest that the memory was proved to hold the tensors of: ``target`` after ``apply``, ``base`` after
            ``undo`` and before either.

        Raises:
            LiveChunkError: a chunk is another one; the first is named.
        """
        expected = self.target if self.state in (Stage.APPLYING, Stage.APPLIED) else self.base
        tasks = [
            (index, first)
            for index, chunks in enumerate(expected.storages)
            for first in range(0, chunks.count, _BLOCK_CHUNKS)
        ]

        def prove(task: tuple[int, int]) -> None:
            index, first = task
            start, end = first * CHUNK_BYTES, min((first + _BLOCK_CHUNKS) * CHUNK_BYTES, len(self._storages[index]))
            prove_live(self._storages[index], start, self._storages[index][start:end], expected, index)

        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ckpt-live") as pool:
            list(pool.map(prove, tasks))
        return expected

    def save(self, folder: Path | str) -> None:
        """Write the record that :func:`ckpt.staged` makes this patch of again, in any process; before :meth:`apply`.

        From here on each call notes there what it begins and what it has done. Who outlives no power loss needs no
        disk: in ``/dev/shm`` it costs a copy.

        Raises:
            DestinationError: ``folder`` exists.
        """
        write_record(folder, self.base, self.target, self._writes, self.state)
        self.folder = Path(folder).resolve()

    def discard(self) -> None:
        """Remove the record, in one step."""
        if self.folder is not None:
            folder, self.folder = self.folder, None
            remove_whole(folder)


def prove_live(storage: LiveStorage, start: int, data: memoryview, expected: Manifest, index: int) -> None:
    """Raise on the first chunk of ``data``, which begins at byte ``start`` of a storage, that is not the expected one.

    Raises:
        LiveChunkError: names tensors and chunk.
    """
    chunks = expected.storages[index]
    for chunk in range(start // CHUNK_BYTES, -(-(start + len(data)) // CHUNK_BYTES)):
        first, end = chunk_range(chunk, chunks.size_bytes)
        found = sha256(data[first - start : end - start])
        if found != chunks.sha256_of(chunk):
            raise LiveChunkError(
                owner=storage.owner, chunk=chunk, start=first, end=end, root=expected.root, found=text(found),
                expected=text(chunks.sha256_of(chunk)),
            )  # fmt: skip
