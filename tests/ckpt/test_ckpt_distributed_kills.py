"""A process that is killed or fails while several save: the path keeps what it had, and the next save cleans up."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard

import ckpt
import ckpt.distributed
from ckpt.distributed import saving
from tests.ckpt.gloo import run
from tests.ckpt.power_loss import may_trace
from tests.ckpt.sharded import local_of, meshes

OLD, NEW = torch.zeros(6, 2), torch.ones(6, 2)


def kill_me(*_: object, **__: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def save_and_die(rank: int, path: Path, victim: int, step: str) -> tuple[bool, bool, list[str]]:
    """Whether the survivor was told, whether the path has the old state then, and what lies beside it."""
    mesh, _ = meshes()
    if rank == victim:
        setattr(saving, step, kill_me)
    told = False
    try:
        ckpt.distributed.save({"w": local_of(NEW, mesh, [Shard(0)])}, path, overwrite=True)
    except RuntimeError:
        told = True
    return told, torch.equal(ckpt.load(path)["w"], OLD), leftovers(path)


def leftovers(path: Path) -> list[str]:
    return [item.name for item in path.parent.iterdir() if item.name.startswith(".c.")]


@pytest.mark.parametrize(
    ("victim", "step"), [(1, "holding_of"), (1, "write_shard"), (0, "write_shard"), (0, "complete")]
)
def test_a_killed_process_leaves_the_old_checkpoint_to_the_others(tmp_path: Path, victim: int, step: str) -> None:
    ckpt.save({"w": OLD}, tmp_path / "c")

    answers = run(2, save_and_die, tmp_path, tmp_path / "c", victim, step, dying=True)

    told, kept, beside = answers[1 - victim]
    assert answers[victim] is None
    assert (told, kept) == (True, True)
    assert ckpt.verify(tmp_path / "c").ok
    assert bool(beside) == (victim == 0), "a coordinator that lives removes its folder"
    ckpt.save({"w": NEW}, tmp_path / "c", overwrite=True)
    assert leftovers(tmp_path / "c") == []


@pytest.mark.skipif(not may_trace(), reason="strace is missing or may not trace: SYSTEM_DEPS=1 make system-deps")
def test_a_process_killed_within_a_system_call_leaves_a_whole_state_and_no_other_that_hangs() -> None:
    """Either rank, to a new path and over an old one; ``make soak`` kills at every call."""
    command = [sys.executable, "-m", "tests.ckpt.soak_kill_ranks", "fsync", "renameat2", "rmdir"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=480)

    assert done.returncode == 0, done.stderr
    kills = [line for line in done.stdout.splitlines() if line.endswith(" 1 kills")]
    assert [line.split()[1] for line in kills].count("0,") == 5, "of the coordinator all but rmdir on a new path"
    assert [line.split()[1] for line in kills].count("1,") == 2, "of the other rank, which renames no folder, fsync"


def save_on_a_full_disk(rank: int, path: Path) -> list[str]:
    """Rank 1 cannot write, then can; both are told and go on together."""
    mesh, _ = meshes()
    state = {"w": local_of(NEW, mesh, [Shard(0)])}
    write_shard = saving.write_shard
    if rank == 1:
        saving.write_shard = _full
    told = []
    try:
        ckpt.distributed.save(state, path)
    except OSError as error:
        told = [error.strerror or "", *error.__notes__]
    dist.barrier()
    told += leftovers(path)
    saving.write_shard = write_shard
    ckpt.distributed.save(state, path)
    return told


def _full(*_: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_process_that_cannot_write_fails_the_save_of_all_and_leaves_nothing(tmp_path: Path) -> None:
    answers = run(2, save_on_a_full_disk, tmp_path, tmp_path / "c")

    assert answers == [["No space left on device", "raised by rank 1; the ranks that failed: [1]"]] * 2
    assert torch.equal(ckpt.load(tmp_path / "c")["w"], NEW)
    assert leftovers(tmp_path / "c") == []
