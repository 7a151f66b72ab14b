"""An update as a transaction: stage, flip, undo.

*Stage* verifies a checkpoint folder and builds a slot beside the one that serves, in a thread, while traffic runs.
*Flip* makes it live between two batches. *Undo* goes back to the previous slot, which is still in memory: no network,
no folder. Each takes effect whole or not at all, and what does not verify changes nothing.

A model has two arenas. Staging overwrites the previous generation's once the new checkpoint has been verified, so
between there and the flip there is no way back; flip opens it again. Undo is a compare-and-set: it names the root it
suspects and does nothing when another one is live, so repeated alarms never walk further back. It does not wait for a
staging in progress, and what it left is not the way back of anything.
"""

import asyncio
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from serving import weights
from serving.engine import Engine, warm
from serving.errors import NothingToUndoError, NotStagedError, ReleaseRefusedError
from serving.metrics import Metrics
from serving.weights import Release, Slot


class OpenRelease(Protocol):
    """Opens and verifies a checkpoint folder: ``release.open_release``, or a fake."""

    def __call__(self, folder: Path, *, root: str, seal: str) -> AbstractContextManager[Release]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a model answers with, and what is held beside it."""

    root: str
    version: str
    generation: int
    staged_root: str | None
    previous_root: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a control call did.

    Attributes:
        outcome: ``staged``, ``flipped``, ``undone``, or ``noop`` when there was nothing to do.
        seconds: Of staging beside traffic, or of the pause of a flip or undo.
        standing: After the call.
    """

    outcome: str
    seconds: float
    standing: Standing


class Updater:
    """Keeps the slots of one model beside the live one.

    Args:
        engine: Holds the live slot.
        metrics: Where updates are counted.
        open_release: Opens and verifies a checkpoint folder.
    """

    def __init__(self, engine: Engine, *, metrics: Metrics, open_release: OpenRelease) -> None:
        self._engine = engine
        self._metrics = metrics
        self._open_release = open_release
        self._previous: Slot | None = None
        self._staged: Slot | None = None
        self._one_stage = asyncio.Lock()
        self._one_exchange = asyncio.Lock()
        self._hold_previous = threading.Lock()
        metrics.show_live(engine.live)

    @property
    def standing(self) -> Standing:
        """What is live, staged and previous now."""
        live, staged, previous = self._engine.live, self._staged, self._previous
        return Standing(
            root=live.slot.root,
            version=live.slot.version,
            generation=live.generation,
            staged_root=staged.root if staged else None,
            previous_root=previous.root if previous else None,
        )

    async def stage(self, folder: Path, *, root: str, seal: str, version: str) -> Step:
        """Verify the folder and build its slot; traffic goes on, and so may an undo.

        A root that is live, staged or previous is not read again: it stays with the program that it was proved with.

        Raises:
            ReleaseRefusedError: The folder does not verify, is not of ``root`` and ``seal``, or cannot follow what is
                live. Nothing has changed.
        """
        async with self._one_stage:
            if root in (self.standing.root, self.standing.staged_root):
                return self._noop()
            started_s = time.monotonic()
            try:
                held = self._take_previous(root=root)
                self._staged = held or await asyncio.to_thread(
                    self._build, folder, root=root, seal=seal, version=version
                )
            except ReleaseRefusedError:
                self._metrics.count_stage("refused", seconds=time.monotonic() - started_s)
                raise
            seconds = time.monotonic() - started_s
            self._metrics.count_stage("staged", seconds=seconds)
            return Step(outcome="staged", seconds=seconds, standing=self.standing)

    async def flip(self, root: str) -> Step:
        """Make the staged slot live between two batches; the old one becomes the previous.

        Raises:
            NotStagedError: ``root`` is neither live nor staged.
        """
        async with self._one_exchange:
            live, staged = self._engine.live.slot, self._staged
            if live.root == root:
                return self._noop()
            if staged is None or staged.root != root:
                raise NotStagedError(
                    f"flip of model '{self._engine.model.name}' to {root}",
                    found=f"{staged.root if staged else 'nothing'} staged",
                    expected="that root staged",
                    next_step="Stage it first.",
                )
            pause_s = await self._engine.exchange(staged)
            self._staged, self._previous = None, live
            return self._exchanged("flipped", pause_s=pause_s)

    async def undo(self, suspect: str) -> Step:
        """Go back to the previous slot if ``suspect`` is live; otherwise do nothing.

        Raises:
            NothingToUndoError: ``suspect`` is live and no previous slot is held.
        """
        async with self._one_exchange:
            if self._engine.live.slot.root != suspect:
                return self._noop()
            previous = self._take_previous()
            if previous is None:
                raise NothingToUndoError(
                    f"undo of model '{self._engine.model.name}' from {suspect}",
                    found="no previous generation in memory",
                    expected="one, which a flip leaves and an undo or a staging uses up",
                    next_step="Stage and flip to a good version.",
                )
            pause_s = await self._engine.exchange(previous)
            return self._exchanged("undone", pause_s=pause_s)

    def _noop(self) -> Step:
        self._metrics.count_noop()
        return Step(outcome="noop", seconds=0.0, standing=self.standing)

    def _exchanged(self, outcome: str, *, pause_s: float) -> Step:
        self._metrics.count_exchange(outcome, pause_s=pause_s)
        self._metrics.show_live(self._engine.live)
        return Step(outcome=outcome, seconds=pause_s, standing=self.standing)

    def _take_previous(self, *, root: str | None = None) -> Slot | None:
        """Take the previous slot out, if it has ``root`` or no root is named; an undo and a staging may race for it."""
        with self._hold_previous:
            previous = self._previous
            if previous is None or root not in (None, previous.root):
                return None
            self._previous = None
            return previous

    def _build(self, folder: Path, *, root: str, seal: str, version: str) -> Slot:
        """Build the slot of a folder; runs in a thread of its own, reading the live slot and writing beside it."""
        live = self._engine.live.slot
        with self._open_release(folder, root=root, seal=seal) as release:
            weights.check_required(release)
            if release.program.digest != live.program.digest:
                return self._build_new_program(release, version=version)
            previous = self._take_previous()
            reusable = previous is not None and previous.program.digest == live.program.digest
            arena = previous.arena if previous is not None and reusable else None
            return weights.rebuild(release, version=version, live=live, arena=arena)

    def _build_new_program(self, release: Release, *, version: str) -> Slot:
        """Bind another program, which must take and give what clients of this model know, and warm it."""
        model = self._engine.model
        found = weights.describe(release.program, name=model.name, max_rows=model.max_rows)
        if found != model:
            raise ReleaseRefusedError(
                f"program {release.program.digest} of '{release.folder}'",
                found=f"inputs {found.inputs}, outputs {found.outputs}",
                expected=f"inputs {model.inputs}, outputs {model.outputs}, which are live",
                next_step="Serve it as a model of another name.",
            )
        slot = weights.build(release, version=version)
        warm(slot, model=model, buckets=self._engine.buckets)
        return slot
