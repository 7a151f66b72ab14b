"""The promotion ledger: who moved what, when, why; append-only, hash-chained, one file a model.

Each line is one entry as canonical JSON and holds the SHA-256 of the line before it. A move is a compare-and-set
under a file lock: the mover states what it believes is live, and a generation number grows with every move, so a
mover that slept cannot move back. What is live, what was live at a time, and which roots are quarantined are folds
over the entries. The alias in MLflow is a view of this file, never the other way round.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from registry.errors import (
    BrokenLedgerError,
    NotQuarantinedError,
    QuarantinedError,
    StaleExpectationError,
    UnknownRootError,
)

_GENESIS = "sha256:" + "0" * 64
PROMOTE, ROLLBACK, NOTHING, QUARANTINE, CLEAR = "promote", "rollback", "nothing", "quarantine", "clear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A version as the ledger names it: number and root."""

    version: int
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One decision.

    Attributes:
        sequence: 1, 2, 3, … without a gap.
        at: Seconds since the epoch, by the writer's clock.
        action: promote, rollback, quarantine, clear, or nothing (a decision that found nothing to move).
        alias: The alias that moved.
        generation: Of the alias, after this entry; grows with every move.
        before, after: What was live and what is live.
        quarantined: The root that this entry puts under quarantine or clears.
        actor, reason, flow_run: Who, why, and in which flow run.
        previous: SHA-256 of the line before.
    """

    sequence: int
    at: float
    action: str
    alias: str
    generation: int
    before: Target | None
    after: Target | None
    quarantined: str | None
    actor: str
    reason: str
    flow_run: str | None
    previous: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who decides, why, in which flow run, and the time it is."""

    actor: str
    reason: str
    at: float
    flow_run: str | None = None


class Ledger:
    """The ledger of one model. Readers take no lock; a writer's line is whole or ignored."""

    def __init__(self, path: Path | str, *, model: str) -> None:
        self.path = Path(path)
        self.model = model

    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first, with the chain checked.

        Raises:
            BrokenLedgerError: a line was altered, removed or put in between.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return ()
        return self._parse(data)

    def live(self, alias: str) -> Target | None:
        """What is live under an alias now."""
        return live(self.entries(), alias)

    def promote(self, target: Target, *, alias: str, expect: Target | None, author: Author) -> Entry:
        """Move an alias, if what is live is what the mover believes.

        Raises:
            StaleExpectationError: something else is live than ``expect``.
            QuarantinedError: the target's root was rolled back and not cleared.
        """
        with self._writing() as (file, entries):
            self._refuse_quarantined(entries, target.root)
            now = live(entries, alias)
            if now != expect:
                raise StaleExpectationError(
                    model=self.model,
                    alias=alias,
                    found="nothing" if now is None else _shown(now),
                    live=None if now is None else now.version,
                    expected=None if expect is None else _shown(expect),
                )
            return _append(file, entries, PROMOTE, alias=alias, before=now, after=target, author=author)

    def rollback(self, *, alias: str, suspect: str, author: Author, generation: int | None = None) -> Entry:
        """Go back to the version that was live before, if the suspect still is; quarantine the suspect.

        Repeated alarms about a root that is no longer live are recorded as ``nothing``: they never walk further
        back.

        Args:
            alias: The alias to move.
            suspect: The root under suspicion, ``sha256:…``.
            author: Who decides.
            generation: Of the alias when the suspicion arose; an alarm that comes after another move is stale.

        Raises:
            UnknownRootError: the suspect was never live; nothing is written.
        """
        known = roots_of(self.entries())  # it only grows, so no lock is held, and no file made for a wrong name
        if suspect not in known:
            raise UnknownRootError(suspect, model=self.model, matches=(), known=as_listed(known))
        with self._writing() as (file, entries):
            now = live(entries, alias)
            back = before_suspect(entries, alias, suspect)
            stale = generation is not None and generation != generation_of(entries, alias)
            if stale or now is None or now.root != suspect or back is None:
                return _append(file, entries, NOTHING, alias=alias, before=now, after=now, author=author)
            return _append(
                file, entries, ROLLBACK, alias=alias, before=now, after=back, author=author, quarantined=suspect
            )

    def quarantine(self, root: str, *, alias: str, author: Author) -> Entry:
        """Refuse a root from now on, without moving anything."""
        return self._mark(QUARANTINE, root, alias, author)

    def clear(self, root: str, *, alias: str, author: Author) -> Entry:
        """Allow a quarantined root again.

        Raises:
            NotQuarantinedError: it is not under quarantine; nothing is written.
        """
        entries = self.entries()
        held = quarantined(entries)
        if root not in held:
            listed = as_listed({root: numbers for root, numbers in roots_of(entries).items() if root in held})
            raise NotQuarantinedError(model=self.model, root=root, held=listed)
        return self._mark(CLEAR, root, alias, author)

    def _mark(self, action: str, root: str, alias: str, author: Author) -> Entry:
        with self._writing() as (file, entries):
            now = live(entries, alias)
            return _append(file, entries, action, alias=alias, before=now, after=now, author=author, quarantined=root)

    def _refuse_quarantined(self, entries: Sequence[Entry], root: str) -> None:
        held = quarantined(entries)
        if root in held:
            raise QuarantinedError(model=self.model, root=root, reason=held[root])

    @contextmanager
    def _writing(self) -> Iterator[tuple[BinaryIO, tuple[Entry, ...]]]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):  # a writer was killed inside its line; nobody was told of it
                file.truncate(whole)
            if not whole:
                _sync_folder(self.path.parent)
            try:
                yield file, self._parse(data[:whole])
            except OSError:  # the disk did not take the line: no reader is to see it either
                os.truncate(self.path, whole)
                raise

    def _parse(self, data: bytes) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        previous = _GENESIS
        for number, line in enumerate(data.splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                break
            entry = self._entry(line, number)
            if entry.previous != previous or entry.sequence != number:
                raise BrokenLedgerError(str(self.path), number, f"an entry after {entry.previous}", f"after {previous}")
            entries.append(entry)
            previous = _hash(line)
        return tuple(entries)

    def _entry(self, line: bytes, number: int) -> Entry:
        try:
            fields = json.loads(line)
            for side in ("before", "after"):
                fields[side] = Target(**fields[side]) if fields[side] is not None else None
            entry = Entry(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise BrokenLedgerError(str(self.path), number, f"no entry ({error})", "one JSON object") from None
        if _line(entry) != line:
            raise BrokenLedgerError(str(self.path), number, "another encoding", "canonical JSON")
        return entry


def live(entries: Sequence[Entry], alias: str) -> Target | None:
    """What the last entry about an alias left live."""
    return next((entry.after for entry in reversed(entries) if entry.alias == alias), None)


def live_at(entries: Sequence[Entry], alias: str, at: float) -> Target | None:
    """What was live under an alias at a time (seconds since the epoch)."""
    return live([entry for entry in entries if entry.at <= at], alias)


def generation_of(entries: Sequence[Entry], alias: str) -> int:
    """Moves of an alias so far."""
    return next((entry.generation for entry in reversed(entries) if entry.alias == alias), 0)


def quarantined(entries: Sequence[Entry]) -> dict[str, str]:
    """Roots under quarantine → why."""
    held: dict[str, str] = {}
    for entry in entries:
        if entry.quarantined is not None:
            if entry.action == CLEAR:
                held.pop(entry.quarantined, None)
            else:
                held[entry.quarantined] = entry.reason
    return held


def roots_of(entries: Sequence[Entry]) -> dict[str, tuple[int, ...]]:
    """Every root that was ever live or quarantined → the numbers of its versions, oldest first."""
    found: dict[str, dict[int, None]] = {}
    for entry in entries:
        if entry.quarantined is not None:
            found.setdefault(entry.quarantined, {})
        for target in (entry.before, entry.after):
            if target is not None:
                found.setdefault(target.root, {})[target.version] = None
    return {root: tuple(numbers) for root, numbers in found.items()}


def as_listed(roots: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """Roots for people, each with its versions: ``v3 sha256:8303a421eb59``."""
    return tuple("".join(f"v{number} " for number in numbers) + root[:19] for root, numbers in roots.items())


def before_suspect(entries: Sequence[Entry], alias: str, suspect: str) -> Target | None:
    """The version to go back to: the last one live that is neither the suspect nor under quarantine."""
    held = quarantined(entries)
    moves = [entry.after for entry in entries if entry.alias == alias and entry.after is not None]
    return next((target for target in reversed(moves) if target.root != suspect and target.root not in held), None)


def _append(
    file: BinaryIO,
    entries: Sequence[Entry],
    action: str,
    *,
    alias: str,
    before: Target | None,
    after: Target | None,
    author: Author,
    quarantined: str | None = None,
) -> Entry:
    entry = Entry(
        sequence=len(entries) + 1,
        at=author.at,
        action=action,
        alias=alias,
        generation=generation_of(entries, alias) + (action in (PROMOTE, ROLLBACK)),
        before=before,
        after=after,
        quarantined=quarantined,
        actor=author.actor,
        reason=author.reason,
        flow_run=author.flow_run,
        previous=_hash(_line(entries[-1])) if entries else _GENESIS,
    )
    file.write(_line(entry))
    file.flush()
    os.fsync(file.fileno())
    return entry


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _line(entry: Entry) -> bytes:
    return json.dumps(asdict(entry), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def _hash(line: bytes) -> str:
    return f"sha256:{hashlib.sha256(line).hexdigest()}"


def _shown(target: Target) -> str:
    return f"version {target.version} ({target.root[:19]}…)"
