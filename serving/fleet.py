"""A fleet: one process that keeps workers at what an alias names.

The alias is the desired state. Whenever it moves, or a worker was started again, the fleet resolves and fetches (only
it speaks to the source), stages on every worker, and once all have staged, flips each: a version that one worker
refuses goes live on none. A version that cannot be resolved, fetched or staged changes nothing, and the reason stands
in the status.

An undo goes to all workers at once, from memory. The undone root is then *held back*: while the alias still names it,
it is not applied again, so the fleet does not put back what was just taken away. When the alias has moved, the root is
a version like any other, and whether it may return is the source's to say (quarantine).
"""

import asyncio
import contextlib
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import orjson

from serving.child import Child
from serving.client import Standing
from serving.errors import NothingToUndoError, QuarantinedError, SourceError
from serving.protocol import Json
from serving.source import Desired, Source, Target, replace_file

POLL_S = 2.0
CONVERGE_BOUND_S = 45.0


class Fleet:
    """Keeps children at what ``name@alias`` names.

    Args:
        children: The workers.
        source: Resolves and fetches.
        name, alias: What to serve.
        first: What the alias named at the start.
        status_file: Rewritten after each change, for who cannot ask over HTTP.
    """

    def __init__(
        self, children: Sequence[Child], *, source: Source, name: str, alias: str, first: Target, status_file: Path
    ) -> None:
        self.target = first
        self._children = children
        self._source = source
        self._name = name
        self._alias = alias
        self._status_file = status_file
        self._desired: Desired = first.desired
        self._fetched = {first.desired: first}
        self._previous: Target | None = None
        self._held_back: str | None = None
        self._problem: str | None = None
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    def note_change(self) -> None:
        """Have the fleet look again soon: a worker became ready or ended."""
        self._changed.set()

    async def follow(self, *, poll_s: float = POLL_S) -> None:
        """Reconcile now, whenever a worker changes, and every ``poll_s`` seconds, until cancelled."""
        while True:
            await self.reconcile()
            await self._wait_for_change(poll_s)

    async def converge(self) -> Json:
        """Reconcile until every worker serves what the alias names, or a reason stands against it; return the status.

        Waits for workers that are starting, at most ``CONVERGE_BOUND_S``.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + CONVERGE_BOUND_S
        while True:
            status = await self.reconcile()
            everybody_answered = all(child.is_ready for child in self._children)
            if status["converged"] or everybody_answered or loop.time() >= end_s:
                return status
            await self._wait_for_change(min(1.0, end_s - loop.time()))

    async def reconcile(self) -> Json:
        """Bring the workers nearer to what the alias names; return the status."""
        async with self._turn:
            self._problem = None
            await self._apply(await self._aim())
            return self._publish()

    async def undo(self, suspect: str) -> Json:
        """Take all workers back from ``suspect`` to what they served before; return the status and an ``outcome``.

        Workers that hold no previous generation, since they were started after it, are brought there by its folder.

        Raises:
            NothingToUndoError: ``suspect`` is live and nothing served before it here.
        """
        async with self._turn:
            if self.target.desired.root != suspect:
                return {**self._publish(), "outcome": "noop"}
            if self._previous is None:
                raise NothingToUndoError(
                    f"undo of '{self._name}' from {suspect}",
                    found="no version served before it by this fleet",
                    expected="one",
                    next_step=f"Move the alias '{self._alias}' to a good version.",
                )
            self._problem = None
            self._held_back = suspect
            self.target, self._previous = self._previous, None
            ready = [child for child in self._children if child.is_ready]
            await asyncio.gather(*(child.call(functools.partial(child.client.undo, suspect)) for child in ready))
            await self._apply(self.target)
            return {**self._publish(), "outcome": "undone"}

    def status(self) -> Json:
        """Say who serves what."""
        roots = {child.standing.root if child.standing else None for child in self._children}
        return {
            "model": self._name,
            "alias": self._alias,
            "pid": os.getpid(),
            "desired": {"version": self._desired.version, "root": self._desired.root},
            "target": {"version": self.target.desired.version, "root": self.target.desired.root},
            "held_back": self._held_back,
            "converged": roots == {self._desired.root},
            "problem": self._problem,
            "workers": [_describe(child) for child in self._children],
        }

    async def _wait_for_change(self, seconds: float) -> None:
        # Not asyncio.wait_for: Python 3.11's swallows a cancellation that arrives together with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    async def _aim(self) -> Target:
        """Return what the alias names, fetched; or the present target, when that is refused or cannot be had."""
        try:
            desired = await asyncio.to_thread(self._source.resolve, self._name, self._alias)
            self._desired = desired
            if desired.root == self._held_back:
                raise QuarantinedError(
                    f"alias '{self._name}@{self._alias}'",
                    found=f"{desired.root}, which was undone here",
                    expected="another root",
                    next_step="Move the alias; until then the fleet stays where it is.",
                )
            self._held_back = None
            if desired not in self._fetched:
                self._fetched[desired] = await asyncio.to_thread(self._source.fetch, desired)
        except SourceError as error:
            self._problem = str(error)
            return self.target
        return self._fetched[desired]

    async def _apply(self, target: Target) -> None:
        """Stage on every ready worker that needs it; when all have, make it the target and flip each."""
        ready = [child for child in self._children if child.is_ready]
        standings = await asyncio.gather(*(child.observe() for child in ready))
        behind = [
            child
            for child, standing in zip(ready, standings, strict=True)
            if standing is not None and standing.root != target.desired.root
        ]
        staged = await asyncio.gather(*(child.call(functools.partial(_stage, child, target)) for child in behind))
        if None in staged:
            refusals = [f"worker {child.index}: {child.problem}" for child in behind if child.problem]
            self._problem = "; ".join(refusals)
            self._fetched.pop(target.desired, None)  # fetched again next time: its folder may be what is wrong
            return
        if target.desired.root != self.target.desired.root:
            self._previous, self.target = self.target, target
        await asyncio.gather(
            *(child.call(functools.partial(child.client.flip, target.desired.root)) for child in behind)
        )

    def _publish(self) -> Json:
        status = self.status()
        replace_file(self._status_file, orjson.dumps(status, option=orjson.OPT_INDENT_2))
        return status


def _stage(child: Child, target: Target) -> Standing:
    desired = target.desired
    return child.client.stage(target.folder, root=desired.root, seal=target.seal, version=desired.version)


def _describe(child: Child) -> Json:
    standing = child.standing
    return {
        "index": child.index,
        "url": child.url,
        "pid": child.pid,
        "state": "ready" if child.is_ready else "starting",
        "starts": child.starts,
        "problem": child.problem,
        "root": standing.root if standing else None,
        "version": standing.version if standing else None,
        "generation": standing.generation if standing else None,
        "previous_root": standing.previous_root if standing else None,
    }
