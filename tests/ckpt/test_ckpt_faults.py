"""A disk that is full, broken or read-only, and calls that are cut short: an error with a path, and no half a state.

Every call of a small save, of one that replaces, and of readers fails once; ``make soak`` runs every action and fault.
"""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import ckpt
from ckpt.disk import commit
from tests.ckpt.faults import ACTIONS, FAULTS, Outcome, outcomes

WELL = ("short", "EINTR")  # what a writer gets over
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing: SYSTEM_DEPS=1 make system-deps"),
]


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    return outcomes(tmp_path_factory.mktemp("faults"), "save", "overwrite", "read", "keygen", faults="first")


def untrue(met: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes that are not as promised."""
    return [item for item in met if item.left or not item.known or item.state not in states(item)]


def states(item: Outcome) -> tuple[str, ...]:
    """What a reader may find: after an error what was there before, unless all was written when it came."""
    action = ACTIONS[item.action]
    if item.fault in WELL:
        return () if item.said else (action.after,)
    if not item.said:  # an error is owed where bytes may be lost
        return () if item.call in ("write", "fsync") else (action.after,)
    return (action.before,) if item.call in ("write", "mkdir", "truncate") else (action.before, action.after)


def test_every_call_that_fails_leaves_the_old_state_or_the_new_one_and_says_where(met: list[Outcome]) -> None:
    assert {item.call for item in met} == FAULTS.keys() - {"truncate"}
    assert untrue(met) == []


def test_the_shim_meets_each_call_of_a_save_once(met: list[Outcome]) -> None:
    written = [item.number for item in met if (item.action, item.call, item.fault) == ("save", "write", "ENOSPC")]

    assert written == list(range(1, len(written) + 1))
    assert len(written) >= 4, "header and storage of a file, index, manifest"


def test_what_was_replaced_stays_while_the_disk_may_still_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder above cannot be synced after the exchange: after a power loss the path may lead to the old one."""
    ckpt.save({"w": torch.ones(3)}, tmp_path / "c")

    def broken(folder: Path) -> None:
        if folder == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(commit, "sync_folder", broken)
        with pytest.raises(OSError, match=rf"Input/output error: '{tmp_path / 'c'}'"):
            ckpt.save({"w": torch.zeros(3)}, tmp_path / "c", overwrite=True)

    (kept,) = tmp_path.glob(".c.*.saving")
    assert ckpt.load(kept)["w"].sum() == 3
    assert ckpt.load(tmp_path / "c")["w"].sum() == 0
    ckpt.save({"w": torch.ones(4)}, tmp_path / "c", overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
