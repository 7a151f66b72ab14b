"""The latest checkpoint is the one of the highest step; what is not kept goes whole, and nothing else goes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ckpt
from ckpt.__main__ import main
from ckpt.disk.commit import remove_whole


def save_steps(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        ckpt.save({"w": torch.full((3,), float(number))}, folder / name)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_latest_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    save_steps(tmp_path, "step-1000", "step-90", "step-0100")

    assert ckpt.latest(tmp_path) == tmp_path / "step-1000"


def test_a_run_without_checkpoints_has_no_latest(tmp_path: Path) -> None:
    (tmp_path / "run" / "step-9").mkdir(parents=True)
    (tmp_path / "run" / "log-10").write_text("")

    assert ckpt.latest(tmp_path / "run") is None
    assert ckpt.latest(tmp_path / "not-yet") is None


def test_only_numbered_checkpoints_count(tmp_path: Path) -> None:
    save_steps(tmp_path, "step-1", "best", ".step-7.0123abcd.saving", "step-2.bak")

    assert ckpt.latest(tmp_path) == tmp_path / "step-1"
    assert ckpt.keep(tmp_path, newest=1).removed == ()
    assert "best" in names(tmp_path)


def test_numbers_of_several_runs_order_nothing(tmp_path: Path) -> None:
    save_steps(tmp_path, "big-10", "small-2")

    with pytest.raises(ValueError, match=r"'big-10' and 'small-2' in .* are not ordered by their numbers"):
        ckpt.latest(tmp_path)

    assert ckpt.latest(tmp_path, prefix="small-") == tmp_path / "small-2"
    assert ckpt.keep(tmp_path, newest=1, prefix="big").kept == (tmp_path / "big-10",)


def test_an_epoch_before_the_step_is_no_other_run(tmp_path: Path) -> None:
    save_steps(tmp_path, "epoch=9-step=90", "epoch=10-step=100")
    assert ckpt.latest(tmp_path) == tmp_path / "epoch=10-step=100"

    save_steps(tmp_path, "epoch=11-step=100")

    with pytest.raises(ValueError, match="'epoch=10-step=100' and 'epoch=11-step=100'"):
        ckpt.latest(tmp_path)


def test_a_damaged_latest_is_named_and_no_older_one_taken_for_it(tmp_path: Path) -> None:
    save_steps(tmp_path, "step-1", "step-2", "step-3")
    (weights,) = (tmp_path / "step-3").glob("weights-*")
    os.truncate(weights, 100)

    with pytest.raises(ckpt.CorruptFileError, match="step-3"):
        ckpt.latest(tmp_path)
    with pytest.raises(ckpt.CorruptFileError, match="step-3"):
        ckpt.keep(tmp_path, newest=1)

    assert names(tmp_path) == ["step-1", "step-2", "step-3"]


@given(steps=st.sets(st.integers(0, 10**12), max_size=30), newest=st.integers(1, 40), every=st.integers(1, 100))
def test_the_policy_keeps_the_newest_and_the_multiples(steps: set[int], newest: int, every: int) -> None:
    kept = ckpt.steps_to_keep(steps, newest=newest, every=every)

    assert kept <= steps
    assert {step for step in steps if step % every == 0} <= kept
    assert sum(1 for step in steps - kept for other in steps if other > step) >= newest * len(steps - kept)
    assert kept == ckpt.steps_to_keep(kept, newest=newest, every=every)


@pytest.mark.parametrize(("newest", "every"), [(0, None), (-1, None), (1, 0)])
def test_a_policy_that_keeps_nothing_is_refused(newest: int, every: int | None, tmp_path: Path) -> None:
    save_steps(tmp_path, "step-1")

    with pytest.raises(ValueError, match="expected numbers of 1 and more"):
        ckpt.keep(tmp_path, newest=newest, every=every)

    assert names(tmp_path) == ["step-1"]


def test_what_is_not_kept_is_gone(tmp_path: Path) -> None:
    save_steps(tmp_path, *(f"step-{step}" for step in (5, 10, 15, 20, 25, 30)))
    before = names(tmp_path)
    planned = ckpt.keep(tmp_path, newest=2, every=10, dry_run=True)
    assert names(tmp_path) == before

    done = ckpt.keep(tmp_path, newest=2, every=10)

    assert done == planned
    assert done.removed == (tmp_path / "step-5", tmp_path / "step-15")
    assert names(tmp_path) == ["step-10", "step-20", "step-25", "step-30"]
    assert all(ckpt.verify(path).ok for path in done.kept)


def test_a_reader_keeps_what_it_opened(tmp_path: Path) -> None:
    save_steps(tmp_path, "step-1", "step-2")
    loaded = ckpt.load(tmp_path / "step-2")

    with ckpt.open(tmp_path / "step-1") as opened:
        save_steps(tmp_path, "step-3")
        ckpt.keep(tmp_path, newest=1)

        assert opened["w"].eq(0).all()
    assert loaded["w"].eq(1).all()


def test_files_of_others_and_links_are_not_removed(tmp_path: Path) -> None:
    save_steps(tmp_path, "step-1", "step-2", "step-3")
    (tmp_path / "step-2" / "thesis.tex").write_text("years of work")
    (tmp_path / "elsewhere").mkdir()
    os.rename(tmp_path / "step-1", tmp_path / "elsewhere" / "step-1")

    with pytest.raises(ckpt.DestinationError, match=r"step-2' will not be removed: it holds .*thesis\.tex"):
        ckpt.keep(tmp_path, newest=1)
    os.symlink(tmp_path / "elsewhere" / "step-1", tmp_path / "step-1")
    with pytest.raises(ckpt.DestinationError, match=r"step-1' will not be removed: .* a link"):
        ckpt.keep(tmp_path, newest=2)

    assert names(tmp_path) == ["elsewhere", "step-1", "step-2", "step-3"]
    assert ckpt.verify(tmp_path / "step-1").ok


def test_leftovers_of_killed_writers_go_and_living_ones_stay(tmp_path: Path) -> None:
    save_steps(tmp_path, "step-1")
    (tmp_path / ".step-9.0123abcd.saving").mkdir()

    def keep_meanwhile(_done: int, _total: int) -> None:
        assert len([name for name in names(tmp_path) if name.endswith(".saving")]) == 2
        ckpt.keep(tmp_path, newest=1)
        assert len([name for name in names(tmp_path) if name.endswith(".saving")]) == 1

    ckpt.save({"w": torch.ones(3)}, tmp_path / "step-2", progress=keep_meanwhile)

    assert names(tmp_path) == ["step-1", "step-2"]


_KILLED = """
import os, signal, sys, ckpt
count, seen = int(sys.argv[2]), 0
def hook(event, arguments):
    global seen
    if event in ("os.rename", "os.remove", "os.rmdir", "os.scandir", "fcntl.flock"):
        seen += 1
        if seen == count:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
ckpt.keep(sys.argv[1], newest=1)
"""


@pytest.mark.slow
def test_a_kill_leaves_whole_checkpoints_and_the_next_call_ends_the_work(tmp_path: Path) -> None:
    codes = []

    for count in range(1, 60, 4):
        run = tmp_path / str(count)
        save_steps(run, "step-1", "step-2", "step-3")
        killed = subprocess.run([sys.executable, "-c", _KILLED, str(run), str(count)], check=False, timeout=120)
        codes.append(killed.returncode)
        assert all(ckpt.verify(path).ok for path in run.glob("step-*"))
        assert ckpt.latest(run) == run / "step-3"
        ckpt.keep(run, newest=1)
        assert names(run) == ["step-3"]
        if killed.returncode == 0:
            break

    assert codes[0] == -signal.SIGKILL
    assert codes[-1] == 0
    assert len(codes) > 3


# Kills a collector at its n-th event that changes the disk, n = 1, 2, …, until it lives; tells what stood there then.
_COLLECTED = """
import json, os, shutil, signal, sys, ckpt
from pathlib import Path
run, left = Path(sys.argv[1]), Path(sys.argv[2])
def die_at(count):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if event in ("open", "os.remove", "os.rmdir", "os.scandir", "fcntl.flock"):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
found, status = [], None
while status != 0:
    shutil.copytree(left, run, dirs_exist_ok=True)
    child = os.fork()
    if child == 0:
        die_at(len(found) + 1)
        ckpt.keep(run, newest=1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    state = [str(ckpt.latest(run)), ckpt.verify(run / "step-1").root]
    there = len(os.listdir(run))
    ckpt.keep(run, newest=1)
    found.append([status, there, state, os.listdir(run)])
print(json.dumps(found))
"""


def test_a_killed_collection_of_leftovers_harms_no_checkpoint_and_the_next_one_ends_it(tmp_path: Path) -> None:
    run, left = tmp_path / "run", tmp_path / "left"
    save_steps(run, "step-1")
    save_steps(left, ".step-1.01234567.saving", ".step-2.89abcdef.saving")  # a state, and half
    (left / ".step-2.89abcdef.saving" / "manifest.pb").unlink()
    state = [str(run / "step-1"), ckpt.read_manifest(run / "step-1").root]

    command = [sys.executable, "-c", _COLLECTED, str(run), str(left)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)

    assert done.returncode == 0, done.stderr
    *killed, last = json.loads(done.stdout)
    assert {status for status, *_ in killed} == {signal.SIGKILL}
    assert {there for _, there, *_ in killed} == {2, 3}
    assert all(found == state and names == ["step-1"] for *_, found, names in [*killed, last])
    assert last[1] == 1
    assert len(killed) > 10


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ckpt.NotACheckpointError, match="found nothing"):
        ckpt.keep(tmp_path / "rusn", newest=1)


def test_two_at_once_remove_each_folder_once(tmp_path: Path) -> None:
    save_steps(tmp_path, "step-1")
    remove_whole(tmp_path / "step-1")

    with pytest.raises(FileNotFoundError):
        remove_whole(tmp_path / "step-1")

    assert names(tmp_path) == []


def test_the_command_line_tells_and_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_steps(tmp_path, "step-1", "step-2", "step-3")

    assert main(["latest", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "step-3")
    assert main(["keep", str(tmp_path), "--newest", "2", "--dry-run"]) == 0
    assert f"would remove {tmp_path / 'step-1'}" in capsys.readouterr().out
    assert main(["keep", str(tmp_path), "--newest", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [str(tmp_path / "step-1")]
    assert main(["latest", str(tmp_path), "--prefix", "other"]) == 1
    assert "no checkpoint" in capsys.readouterr().out
    assert main(["keep", str(tmp_path), "--newest", "0"]) == 2
    assert names(tmp_path) == ["step-2", "step-3"]
