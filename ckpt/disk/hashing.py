"""Blocks of bytes into a file, hashed by threads while they are written.

Each block is handed to the disk as soon as it is written, so that the device works while the next ones are hashed
and the closing fsync finds little left to do.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO

from ckpt.disk.folder import forget
from ckpt.format.digests import CHUNK_BYTES, Chunks, both, chunks_of, split

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_Pair = tuple[int, bytes]  # CRC-32 and SHA-256 of a chunk
_SYNC_FILE_RANGE_WRITE = 2
_LIBC = ctypes.CDLL(None, use_errno=True)


class Hasher:
    """Writes blocks, hashes them meanwhile, and counts progress; ends its threads with the ``with`` block.

    The threads are its own, not an executor's: those take no work any more once the interpreter ends, which a save in
    the background must outlive.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._done, self._progress = total, 0, progress
        self._tasks: SimpleQueue[tuple[Future[_Pair], memoryview] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._behind = Poured(lasting=False)  # whose last block may be hashed still

    def __enter__(self) -> "Hasher":
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def pour(
        self, blocks: Iterator[memoryview], file: BinaryIO, *, there: object = None, lasting: bool = False
    ) -> "Poured":
        """Write every block to ``file``; what is returned tells the digests of the whole run.

        Blocks that are views of ``there`` are the file's own bytes in their place. With ``lasting`` they stay as they
        are when others are asked for: one is hashed while the next is made, be it of the next run, and the pages of
        mapped files under it are let go of thereafter.
        """
        poured = Poured(lasting=lasting)
        for block in blocks:
            assert poured.size_bytes % CHUNK_BYTES == 0, "only the last block may end inside a chunk"
            is_large = len(block) > CHUNK_BYTES  # handing one chunk to a thread costs more than it saves
            pending = [self._submit(chunk) for chunk in split(block)] if is_large else []
            _put(block, file, there)
            if is_large:
                _start_writing(file, len(block))
            self._behind.settle()
            self._behind = poured
            poured.add(block, pending)
            self._done += len(block)
            if self._progress is not None:
                self._progress(min(self._done, self._total), self._total)
        return poured

    def _submit(self, chunk: memoryview) -> Future[_Pair]:
        if not self._threads:  # not before: a small checkpoint needs none
            self._threads = [Thread(target=self._run, name="ckpt-hash") for _ in range(os.cpu_count() or 1)]
            for thread in self._threads:
                thread.start()
        future: Future[_Pair] = Future()
        self._tasks.put((future, chunk))
        return future

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, chunk = task
            try:
                future.set_result(both(chunk))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the digests
                future.set_exception(error)


class Poured:
    """Blocks that were written, of which the last one may be hashed still."""

    def __init__(self, *, lasting: bool) -> None:
        self.size_bytes = 0
        self._lasting, self._pairs = lasting, list[_Pair]()
        self._pending: Sequence[Future[_Pair]] = ()
        self._block = memoryview(b"")

    def add(self, block: memoryview, pending: Sequence[Future[_Pair]]) -> None:
        """Take the next block, when those before it are settled; one without pending digests is hashed here."""
        self.size_bytes += len(block)
        if not pending:
            self._pairs.append(both(block))
        self._block, self._pending = block, pending
        if not self._lasting:
            self.settle()

    def settle(self) -> None:
        """Wait for the digests of the last block."""
        self._pairs.extend(future.result() for future in self._pending)
        if self._lasting:
            forget(self._block)
        self._block, self._pending = memoryview(b""), ()

    def chunks(self) -> Chunks:
        """The digests of all blocks."""
        self.settle()
        return chunks_of(self._pairs, size_bytes=self.size_bytes)


def _put(block: memoryview, file: BinaryIO, there: object) -> None:
    if there is not None and block.obj is there:
        file.seek(len(block), os.SEEK_CUR)
    else:
        file.write(block)


def _start_writing(file: BinaryIO, size: int) -> None:
    """Begin to write the last ``size`` bytes to the device, without waiting for them.

    A hint: where it is not possible the fsync that follows does it all, and reports what fails.
    """
    file.flush()
    _LIBC.sync_file_range(
        file.fileno(), ctypes.c_int64(file.tell() - size), ctypes.c_int64(size), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
    )
