"""A reader finds the old state, the new state or nothing, whatever happens to the writer."""

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

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


@pytest.mark.slow
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


NOBODY, GROUP = 65534, 54321

# Writes as a user of no group of root's into a folder that hands its group on, each in a way of its own.
_OWNED = """
import os, sys, torch, ckpt
from pathlib import Path
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
folder, user = Path(sys.argv[1]), int(sys.argv[2])
os.setgroups([]), os.setgid(user), os.setuid(user), os.umask(0o027)
ckpt.save({"w": torch.ones(1000)}, folder / "replaced", overwrite=True)
ckpt.save({"v": torch.ones(3)}, folder / "saved", attachments={"docs/note": folder / "given" / "note"})
ckpt.diff(folder / "replaced", folder / "saved", folder / "delta")
ckpt.apply(folder / "replaced", folder / "delta", folder / "applied")
ckpt.sign(folder / "applied", Ed25519PrivateKey.generate())
ckpt.adopt(folder / "given" / "x.safetensors", out=folder / "adopted")
ckpt.adopt(folder / "given" / "x.safetensors")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user and give a folder to any group")
def test_owner_group_and_permissions_are_those_of_the_writer_and_of_the_folder_above() -> None:
    """Whatever stood there before, and whatever a file that is taken over had."""
    # Not below tmp_path: whenever a pytest starts it closes the folders above that to other users.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        _owned_in(Path(place))


def _owned_in(place: Path) -> None:
    folder, given = place / "run", place / "run" / "given"
    ckpt.save({"w": torch.zeros(1)}, folder / "replaced")
    given.mkdir()
    (given / "note").write_text("private")
    save_file({"w": torch.ones(3)}, given / "x.safetensors")
    for path, mode in ((given / "note", 0o600), (given / "x.safetensors", 0o700), (folder / "replaced", 0o700)):
        path.chmod(mode)
    for path in (folder / "replaced", *(folder / "replaced").iterdir(), *given.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    for path in (folder, given):
        os.chown(path, NOBODY, GROUP)
        path.chmod(0o2770)  # setgid: what is made inside has the folder's group

    subprocess.run([sys.executable, "-B", "-c", _OWNED, str(folder), str(NOBODY)], check=True, timeout=120)

    foreign = (given, given / "note", given / "x.safetensors")
    made = {path: path.stat() for path in folder.rglob("*") if path not in foreign}
    assert {path.name for path in made} >= {"replaced", "saved", "note", "delta.pb", "signatures.pb", "x.safetensors"}
    assert {(status.st_uid, status.st_gid) for status in made.values()} == {(NOBODY, GROUP)}
    assert {path for path, status in made.items() if stat.S_IMODE(status.st_mode) not in (0o640, 0o2750)} == set()
    assert all(path.is_dir() == bool(status.st_mode & stat.S_ISGID) for path, status in made.items())


def test_an_attachment_cannot_leave_the_folder(tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_text("x")

    for name in ("../evil", "/etc/evil", "a//b", "manifest.pb", "weights-x", "a/../b", ""):
        with pytest.raises(ckpt.DestinationError, match="attachment"):
            ckpt.save({"w": torch.ones(1)}, tmp_path / "c", attachments={name: source})


def test_a_place_that_cannot_be_is_named_as_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").mkdir()

    with pytest.raises(NotADirectoryError) as below:
        ckpt.save({"n": 1}, tmp_path / "file" / "deep" / "c")
    with pytest.raises(OSError, match="File name too long") as long:
        ckpt.save({"n": 1}, tmp_path / ("c" * 250))
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError) as gone:
        ckpt.save({"n": 1}, "c")

    assert below.value.filename == str(tmp_path / "file")
    assert long.value.filename == str(tmp_path / ("c" * 250))
    assert gone.value.filename == "c"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shard_bytes": "1GB"}, "shard_bytes is '1GB'; expected a number of bytes above 0"),
        ({"shard_bytes": 1e9}, "shard_bytes is 1000000000.0; expected"),
        ({"sign": 3}, "found a value of type int for a key; expected the path of a PEM file, or an Ed25519PrivateKey"),
    ],
)
def test_an_argument_of_another_kind_is_told_what_was_expected(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        ckpt.save({"n": 1}, tmp_path / "c", **wrong)

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("trust", "found"), [(True, "bool"), ([3], "int"), (b"key.pem", "int")])
def test_trust_in_what_is_no_key_is_told_what_was_expected(trust: Any, found: str, tmp_path: Path) -> None:
    ckpt.save({"n": 1}, tmp_path / "c")

    with pytest.raises(ValueError, match=f"found a value of type {found} for a key; expected the path of a PEM file"):
        ckpt.load(tmp_path / "c", trust=trust)
