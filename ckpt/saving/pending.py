"""Saves that go on in the background while training does.

:func:`save_async` copies the state into memory of its own before it returns, so that what is changed afterwards never
reaches the file; a thread then writes the copy as :func:`ckpt.save` would. One save at a time is pending in a process:
the next waits for it, so that at most one copy is held. A failure is never lost: ``result()`` raises it, or else the
next save does, or else the end of the program tells it.
"""

import atexit
import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

from ckpt.disk.commit import refuse_destination
from ckpt.disk.hashing import Progress
from ckpt.format.manifest import Manifest
from ckpt.format.shards import SHARD_BYTES
from ckpt.saving.snapshot import Arena
from ckpt.saving.writer import Prepared, foreign, held_in_memory, prepare
from ckpt.signatures.keys import PrivateKey
from ckpt.signatures.signing import Signer


class Pending:
    """A save that :func:`save_async` began. ``path`` is where the checkpoint will stand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._future: Future[Manifest] = Future()
        self._was_told = False
        self._given: SimpleQueue[Prepared | None] = SimpleQueue()
        # Not a daemon: a program that ends waits until its last checkpoint is written.
        Thread(target=self._run, name=f"ckpt-save {path.name}").start()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> Manifest:
        """Wait for the end and return the manifest, with ``root`` and ``seal``.

        Args:
            timeout_s: Seconds to wait at most; for ever by default.

        Raises:
            TimeoutError: it goes on still.
            CheckpointError, OSError: what :func:`ckpt.save` would have raised; the path is as it was before.
        """
        failure = self._future.exception(timeout_s)
        self._was_told = True
        if failure is not None:
            raise failure
        return self._future.result()

    def untold(self) -> BaseException | None:
        """Wait for the end; the failure that nobody has heard of yet."""
        return None if self._was_told else self._future.exception()

    def _run(self) -> None:
        prepared = self._given.get()
        if prepared is None:
            return
        try:
            self._future.set_result(prepared.write())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            self._future.set_exception(error)


class _Saver:
    """The one pending save of this process, and the memory that snapshots go to."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._arena = Arena()
        self._last: Pending | None = None

    def begin(self, prepared: Prepared) -> Pending:
        with self._turn:
            if self._last is not None:
                self._wait_for(self._last)
            # Begun before the copy: to begin with work at hand, a thread would take the caller's turn for some ms.
            pending = Pending(Path(os.path.abspath(prepared.path)))
            copy = None
            try:
                copy = replace(
                    prepared,
                    path=pending.path,
                    sources=self._arena.copy(prepared.sources),
                    attachments=held_in_memory(prepared.attachments),
                )
            finally:
                pending._given.put(copy)
            self._last = pending
            return pending

    def _wait_for(self, earlier: Pending) -> None:
        failure = earlier.untold()
        self._last = None
        if failure is not None:
            failure.add_note(
                f"This was the save of '{earlier.path}' in the background, whose result nobody asked for. "
                "The save that was asked for now has not begun: call save_async again for it."
            )
            raise failure

    def tell_at_exit(self) -> None:
        if self._last is not None and (failure := self._last.untold()) is not None:
            logging.getLogger("ckpt").error(
                "saving '%s' in the background failed: %s: %s", self._last.path, type(failure).__name__, failure
            )


_saver = _Saver()
atexit.register(lambda: _saver.tell_at_exit())


def _start_anew() -> None:
    """In a forked child: the thread and the pending save are the parent's."""
    global _saver
    _saver = _Saver()


os.register_at_fork(after_in_child=_start_anew)


def save_async(
    state: object,
    path: Path | str,
    *,
    metadata: Mapping[str, str] | None = None,
    attachments: Mapping[str, Path | str] | None = None,
    shard_bytes: int = SHARD_BYTES,
    sign: Signer | PrivateKey | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Pending:
    """Copy a state now and write it as a checkpoint folder in the background.

    Args:
        state, path, metadata, attachments, shard_bytes, sign, overwrite: As of :func:`ckpt.save`; attachments are read
            before this returns, too.
        progress: Called with (bytes done, bytes in all) after each block, by the thread that writes.

    Returns:
        The pending save; its ``result()`` waits for the manifest. A program that ends waits for it, too.

    Raises:
        UnsupportedStateError, DestinationError: as of :func:`ckpt.save`, before anything is copied.
        CheckpointError, OSError: the save before failed and nobody has asked for its result; this one has not begun.

    The copy takes as much memory as the state has, kept for the next call: from the second one on the caller is
    blocked for about the time of copying memory, and for what is left of the save before.

    Example:
        >>> pending = ckpt.save_async(model.state_dict(), "runs/1/step-10")  # doctest: +SKIP
        >>> pending.result().root
        'sha256:…'
    """
    prepared = prepare(
        state,
        path,
        metadata=metadata,
        attachments=attachments,
        shard_bytes=shard_bytes,
        sign=sign,
        overwrite=overwrite,
        progress=progress,
    )
    refuse_destination(path, overwrite=overwrite, owns=foreign)
    return _saver.begin(prepared)
