"""SIGKILL at every system call that changes the disk, for one of two processes that save together; not run by pytest.

    python -m tests.ckpt.soak_kill_ranks              # a few minutes; needs strace and the right to trace
    python -m tests.ckpt.soak_kill_ranks fsync rmdir  # at the first of these calls alone

The n-th call of the coordinator, then of the other rank, kills it, n = 1, 2, … until it lives. Afterwards the path must
hold the old root, the new root or, where nothing was, nothing; the process that is left must have said that its peer
has gone, or have saved the new state; and the next writer must leave no leftovers behind. At some of the calls
``test_ckpt_distributed_kills.py`` does so, too.
"""

import os
import select
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # its five hundred files are not read within the first save then
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

import ckpt
import ckpt.distributed
from tests.ckpt.sharded import local_of
from tests.ckpt.soak_kill import CALLS, killed_at

OLD, NEW = ({"w": torch.full((300_000, 2), value), "v": torch.arange(3) * value} for value in (1.0, 2.0))
_LIMIT_S = 60  # nothing waits for it but a process that hangs
_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


def meet(rank: int, meeting: Path) -> None:
    """Find the other process; what hangs then hangs for longer than this soak waits."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=4 * _LIMIT_S)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=limit)
    DeviceMesh("cpu", [0, 1])
    dist.barrier()


def save(path: Path, state: dict[str, torch.Tensor]) -> str:
    """Save together; the root, or what was said."""
    spread = state | {"w": local_of(state["w"], DeviceMesh("cpu", [0, 1]), [Shard(0)])}
    try:
        return ckpt.distributed.save(spread, path, overwrite=path.exists()).root
    except RuntimeError as error:
        return str(error)


def survivor(rank: int, path: Path, meeting: Path) -> tuple[int, int]:
    """The process that is not killed, and where it says what :func:`save` gave."""
    answer, said = os.pipe()
    child = os.fork()
    if child == 0:
        meet(rank, meeting)
        os.write(said, save(path, NEW).encode())
        os._exit(0)
    os.close(said)
    return child, answer


def killed(path: Path, victim: int, call: str, number: int) -> tuple[bool, str]:
    """Save with two processes of which one dies at its n-th call; whether it did, and what the other one said."""
    meeting = path.with_name("meeting")
    other, answer = survivor(1 - victim, path, meeting)
    died = killed_at(call, number, lambda: save(path, NEW), prepare=lambda: meet(victim, meeting))
    with open(answer) as said:
        assert select.select([said], [], [], _LIMIT_S)[0], (
            f"rank {1 - victim} hangs: rank {victim} died at {call} {number}"
        )
        text = said.read()
    os.waitpid(other, 0)
    meeting.unlink(missing_ok=True)
    return died, text


def state_of(path: Path, roots: Mapping[str, str]) -> str:
    """What a reader finds."""
    if not path.exists():
        return "nothing"
    report = ckpt.verify(path)
    return roots.get(str(report.root), "another root") if report.ok and not report.foreign else "broken"


def attack(work: Path, victim: int, *, overwrite: bool, calls: Sequence[str] = CALLS, most: int = 1000) -> Counter[str]:
    """Every call, every number up to ``most``: what was found afterwards. ``work`` is an empty folder."""
    path = work / "c"
    old = ckpt.distributed.save(OLD, path).root  # alone; what is imported for it is no call of the others
    _, new = killed(path, victim, "fsync", 10_000)
    roots = {old: "old", new: "new"}
    ckpt.save(OLD, path, overwrite=True)
    found: Counter[str] = Counter()
    for call in calls:
        number, died = 0, True
        while died and number < most:
            number += 1
            if not overwrite:
                shutil.rmtree(path)
            died, said = killed(path, victim, call, number)
            state = state_of(path, roots)
            found[state] += 1
            what = f"rank {victim} killed at {call} {number}: {state}, the other one said {said}"
            assert state == "new" or (died and state == ("old" if overwrite else "nothing")), what
            assert (said == new and state == "new") or (died and any(words in said for words in _GONE)), what
            ckpt.save(OLD, path, overwrite=True)
            assert [entry.name for entry in work.iterdir()] == ["c"], what
        where = "overwrite" if overwrite else "new path"
        print(f"rank {victim}, {where} {call:10}{number - (not died):4} kills", flush=True)
    return found


def main(*calls: str) -> None:
    torch.set_num_threads(1)
    limits = {"calls": calls, "most": 1} if calls else {}
    for victim in (0, 1):
        for overwrite in (False, True):
            with tempfile.TemporaryDirectory(prefix="soak-") as work:
                print(f"rank {victim}", dict(attack(Path(work), victim, overwrite=overwrite, **limits)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
