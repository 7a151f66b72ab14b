"""Blocks of bytes into a file, hashed by threads while they are written.

Each block is handed to the disk as soon as it is written, so that the device works while the next ones are hashed
and the closing fsync finds little left to do.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO

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

    def __enter__(self) -> "Hasher":
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def pour(self, blocks: Iterator[memoryview], file: BinaryIO, *, there: object = None) -> Chunks:
        """Write every block to ``file``; return the digests of the whole run.

        Blocks that are views of ``there`` are the file's own bytes in their place.
        """
        pairs: list[_Pair] = []
        size = 0
        for block in blocks:
            assert size % CHUNK_BYTES == 0, "only the last block may end inside a chunk"
            if len(block) <= CHUNK_BYTES:  # handing one chunk to a thread costs more than it saves
                pairs.append(both(block))
                _put(block, file, there)
            else:
                pending = [self._submit(chunk) for chunk in split(block)]
                _put(block, file, there)
                _start_writing(file, len(block))
                pairs.extend(future.result() for future in pending)
            size += len(block)
            self._done += len(block)
            if self._progress is not None:
                self._progress(min(self._done, self._total), self._total)
        return chunks_of(pairs, size_bytes=size)

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
