"""A reader finds the old state, the new state or nothing, whatever happens to the writer."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ckpt

# A writer that is killed at its n-th event of the kinds that change the disk.
_KILLED = """
import os, signal, sys, torch, ckpt
state, path, count = {"w": torch.full((100_000,), 2.0)}, sys.argv[1], int(sys.argv[2])
seen = 0
def hook(event, arguments):
    global seen
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "fcntl.flock", "ctypes.dlsym"):
        if event == "open" and not str(arguments[0]).startswith(os.path.dirname(path)):
            return
        seen += 1
        if seen == count:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
ckpt.save(state, path, overwrite=True)
print("done")
"""


def _run(path: Path, count: int) -> "subprocess.CompletedProcess[str]":
    arguments = [sys.executable, "-c", _KILLED, str(path), str(count)]
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)


def test_a_killed_writer_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "c"
    old = ckpt.save({"w": torch.full((100_000,), 1.0)}, path).root
    new = ckpt.save({"w": torch.full((100_000,), 2.0)}, tmp_path / "n").root
    roots = []

    for count in range(1, 60, 5):
        result = _run(path, count)
        assert result.returncode in (0, -signal.SIGKILL), result.stderr
        roots.append(ckpt.verify(path).root if ckpt.verify(path).ok else "broken")
        if result.returncode == 0:
            break
        ckpt.save({"w": torch.full((100_000,), 1.0)}, path, overwrite=True)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c", "n"]

    assert set(roots) <= {old, new}
    assert roots[0] == old
    assert roots[-1] == new
    assert len(roots) > 3


def test_an_existing_path_is_kept_unless_asked(tmp_path: Path) -> None:
    ckpt.save({"w": torch.ones(1)}, tmp_path / "c")

    with pytest.raises(ckpt.DestinationError, match="pass overwrite=True"):
        ckpt.save({"w": torch.zeros(1)}, tmp_path / "c")

    assert ckpt.load(tmp_path / "c")["w"] == 1


def test_a_foreign_folder_is_never_overwritten(tmp_path: Path) -> None:
    ckpt.save({"w": torch.ones(1)}, tmp_path / "c")
    (tmp_path / "c" / "thesis.tex").write_text("years of work")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "file").write_text("x")

    for path, found in ((tmp_path / "c", "thesis.tex"), (tmp_path / "home", "no readable manifest")):
        with pytest.raises(ckpt.DestinationError, match=found):
            ckpt.save({"w": torch.zeros(1)}, path, overwrite=True)

    assert (tmp_path / "c" / "thesis.tex").read_text() == "years of work"


def test_a_mapped_reader_keeps_the_old_bytes(tmp_path: Path) -> None:
    ckpt.save({"w": torch.ones(1000)}, tmp_path / "c")
    loaded = ckpt.load(tmp_path / "c")

    with ckpt.open(tmp_path / "c", verify="none") as opened:
        ckpt.save({"w": torch.zeros(1000)}, tmp_path / "c", overwrite=True)

        assert opened["w"].sum() == 1000
    assert loaded["w"].sum() == 1000
    assert ckpt.load(tmp_path / "c")["w"].sum() == 0


def test_a_failed_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)

    with pytest.raises(OSError, match="No space"):
        ckpt.save({"w": torch.ones(1)}, tmp_path / "c")

    assert list(tmp_path.iterdir()) == []


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        ckpt.save({"w": torch.ones(1)}, tmp_path / "c")
    finally:
        os.umask(old)

    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o750
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "c").iterdir()} == {0o640}


def test_an_attachment_cannot_leave_the_folder(tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_text("x")

    for name in ("../evil", "/etc/evil", "a//b", "manifest.pb", "weights-x", "a/../b", ""):
        with pytest.raises(ckpt.DestinationError, match="attachment"):
            ckpt.save({"w": torch.ones(1)}, tmp_path / "c", attachments={name: source})
