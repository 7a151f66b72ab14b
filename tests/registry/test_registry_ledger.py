"""The ledger says what is live and moves only for those who know it; altered lines are found."""

import json
import multiprocessing
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from registry.errors import BrokenLedgerError, QuarantinedError, StaleExpectationError
from registry.ledger import Author, Ledger, Target, generation_of, live_at, quarantined

A, B, C, D = (Target(version=number, root=f"sha256:{number:064x}") for number in range(1, 5))


def author(at: float = 0.0) -> Author:
    return Author(actor="tester", reason="because", at=at)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "m.jsonl", model="m")


def promote_all(ledger: Ledger, *targets: Target) -> None:
    for at, target in enumerate(targets):
        ledger.promote(target, alias="champion", expect=ledger.live("champion"), author=author(float(at)))


def test_what_was_live_at_a_time_is_one_query(ledger: Ledger) -> None:
    promote_all(ledger, A, B, C)

    entries = ledger.entries()

    assert ledger.live("champion") == C
    assert live_at(entries, "champion", 1.5) == B
    assert live_at(entries, "champion", -1.0) is None
    assert [entry.generation for entry in entries] == [1, 2, 3]


def test_a_mover_who_believes_something_else_is_refused(ledger: Ledger) -> None:
    promote_all(ledger, A, B)

    with pytest.raises(StaleExpectationError, match=r"version 2 .* is live, expected version 1"):
        ledger.promote(C, alias="champion", expect=A, author=author())

    assert ledger.live("champion") == B


def test_repeated_alarms_never_walk_further_back(ledger: Ledger) -> None:
    promote_all(ledger, A, B, C, D)

    actions = [ledger.rollback(alias="champion", suspect=D.root, author=author()).action for _ in range(5)]

    assert actions == ["rollback", "nothing", "nothing", "nothing", "nothing"]
    assert ledger.live("champion") == C


def test_a_rolled_back_root_is_refused_until_cleared(ledger: Ledger) -> None:
    promote_all(ledger, A, B)
    ledger.rollback(alias="champion", suspect=B.root, author=author())

    with pytest.raises(QuarantinedError, match="because"):
        ledger.promote(B, alias="champion", expect=A, author=author())
    ledger.clear(B.root, alias="champion", author=author())
    ledger.promote(B, alias="champion", expect=A, author=author())

    assert ledger.live("champion") == B
    assert quarantined(ledger.entries()) == {}


def test_a_second_suspect_skips_what_is_quarantined(ledger: Ledger) -> None:
    promote_all(ledger, A, B, C)
    ledger.rollback(alias="champion", suspect=C.root, author=author())

    ledger.rollback(alias="champion", suspect=B.root, author=author())

    assert ledger.live("champion") == A


def test_an_alarm_of_an_older_generation_moves_nothing(ledger: Ledger) -> None:
    promote_all(ledger, A, B)
    seen = generation_of(ledger.entries(), "champion")
    promote_all(ledger, A, B)

    entry = ledger.rollback(alias="champion", suspect=B.root, author=author(), generation=seen)

    assert entry.action == "nothing"
    assert ledger.live("champion") == B


def test_the_first_version_has_nowhere_to_go_back_to(ledger: Ledger) -> None:
    promote_all(ledger, A)

    entry = ledger.rollback(alias="champion", suspect=A.root, author=author())

    assert entry.action == "nothing"
    assert ledger.live("champion") == A


@pytest.mark.parametrize("damage", ["reason", "drop", "swap", "junk"])
def test_an_altered_ledger_is_refused(damage: str, ledger: Ledger) -> None:
    promote_all(ledger, A, B, C)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    match damage:
        case "reason":
            lines[1] = lines[1].replace(b"because", b"nothing")
        case "drop":
            del lines[1]
        case "swap":
            lines[0], lines[1] = lines[1], lines[0]
        case "junk":
            lines[1] = b"{}\n"
    ledger.path.write_bytes(b"".join(lines))

    with pytest.raises(BrokenLedgerError, match="line"):
        ledger.entries()
    with pytest.raises(BrokenLedgerError):
        ledger.promote(D, alias="champion", expect=C, author=author())


def test_a_line_torn_by_a_kill_is_as_if_never_written(ledger: Ledger) -> None:
    promote_all(ledger, A, B)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + json.dumps({"sequence": 3}).encode()[:7])

    assert ledger.live("champion") == B
    promote_all(ledger, C)

    assert ledger.path.read_bytes().startswith(whole)
    assert [entry.sequence for entry in ledger.entries()] == [1, 2, 3]


def _mover(path: Path, seed: int, moves: int) -> None:
    ledger = Ledger(path, model="m")
    choose = random.Random(seed)
    for _ in range(moves):
        try:
            ledger.promote(
                choose.choice([A, B, C, D]), alias="champion", expect=ledger.live("champion"), author=author()
            )
        except StaleExpectationError:
            continue


def test_movers_at_once_leave_one_chain(ledger: Ledger) -> None:
    context = multiprocessing.get_context("fork")
    movers = [context.Process(target=_mover, args=(ledger.path, seed, 40)) for seed in range(3)]

    for mover in movers:
        mover.start()
    for mover in movers:
        mover.join(timeout=60)

    entries = ledger.entries()
    assert [mover.exitcode for mover in movers] == [0, 0, 0]
    assert len(entries) >= 40
    for earlier, later in pairwise(entries):
        assert later.before == earlier.after


def test_readers_see_whole_entries_while_others_write(ledger: Ledger) -> None:
    promote_all(ledger, A)
    context = multiprocessing.get_context("fork")
    movers = [context.Process(target=_mover, args=(ledger.path, seed, 40)) for seed in range(2)]
    lengths = []

    for mover in movers:
        mover.start()
    while any(mover.is_alive() for mover in movers):
        lengths.append(len(ledger.entries()))
    for mover in movers:
        mover.join()

    assert [mover.exitcode for mover in movers] == [0, 0]
    assert lengths == sorted(lengths)


def test_a_line_that_the_disk_refuses_is_seen_by_nobody(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    promote_all(ledger, A)
    whole = ledger.path.read_bytes()

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space"):
            ledger.promote(B, alias="champion", expect=A, author=author())

    assert ledger.path.read_bytes() == whole
    promote_all(ledger, B)
    assert ledger.live("champion") == B
