"""A killed ``diff`` or ``apply`` is gone on with, not started over; what it left is believed as far as it is proved."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ckpt
from ckpt.deltas.encoding import FrameWriter
from ckpt.deltas.patches import Patches
from tests.ckpt.killed import DIES_AFTER_FRAMES, count, files, flip, kill

TENSORS, FRAMES = 6, 12  # two frames each: the steps are dense, so that a frame is one chunk
KILLED_AFTER = 5

DIFF = DIES_AFTER_FRAMES + "ckpt.diff(*sys.argv[2:])"

APPLY = """
import os, signal, sys
import ckpt

def die(done, total):
    if done * 2 > total:
        os.kill(os.getpid(), signal.SIGKILL)

ckpt.apply(*sys.argv[1:], progress=die)
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints ``base`` and ``target``, the delta ``whole`` between them, and ``made``, what that makes."""
    folder = tmp_path_factory.mktemp("pair")
    random = torch.Generator().manual_seed(5)
    state = {f"t{number}": torch.randn(1 << 20, generator=random).bfloat16() for number in range(TENSORS)}
    (folder / "readme").write_text("attached")
    ckpt.save(state, folder / "base")
    moved = {name: tensor + torch.randn(1 << 20, generator=random).bfloat16() * 0.01 for name, tensor in state.items()}
    ckpt.save(moved, folder / "target", attachments={"docs/readme": folder / "readme"})
    delta = ckpt.diff(folder / "base", folder / "target", folder / "whole", codecs=["planes"])
    assert len(delta.frames()) == FRAMES + 1
    ckpt.apply(folder / "base", folder / "whole", folder / "made")
    return folder


@pytest.fixture(scope="module")
def killed(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What killed calls left that were to make ``delta`` and ``made``."""
    folder = tmp_path_factory.mktemp("killed")
    kill(DIFF, KILLED_AFTER, pair / "base", pair / "target", folder / "delta")
    kill(APPLY, pair / "base", pair / "whole", folder / "made")
    return folder


def left(killed: Path, name: str, folder: Path) -> Path:
    """A copy of what was left of ``name``."""
    (found,) = killed.glob(f".{name}.*.saving")
    return Path(shutil.copytree(found, folder / found.name))


def test_a_killed_diff_encodes_the_rest_only(
    pair: Path, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckpt.diff(pair / "base", pair / "target", tmp_path / "whole")
    left(killed, "delta", tmp_path)
    encoded = count(monkeypatch, FrameWriter, "_encoded")

    ckpt.diff(pair / "base", pair / "target", tmp_path / "delta")

    assert len(encoded) == FRAMES + 1 - KILLED_AFTER
    assert files(tmp_path / "delta") == files(tmp_path / "whole")
    assert list(tmp_path.glob(".*")) == []


def test_a_killed_apply_decodes_the_rest_only(
    pair: Path, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(killed, "made", tmp_path)
    decoded = count(monkeypatch, Patches, "decode")

    ckpt.apply(pair / "base", pair / "whole", tmp_path / "made")

    assert 0 < len(decoded) <= FRAMES // 2 + 2  # one attachment's, and half of the others
    assert files(tmp_path / "made") == files(pair / "made")
    assert list(tmp_path.glob(".*")) == []


def link(file: Path) -> None:
    """Somebody else's file under another name."""
    victim = file.parent.parent / "victim"
    file.rename(victim)
    file.symlink_to(victim)


def victim_in(folder: Path) -> bytes | None:
    return (folder / "victim").read_bytes() if (folder / "victim").exists() else None


def hard_link(file: Path) -> None:
    os.link(file, file.parent.parent / "victim")


def fold(file: Path) -> None:
    file.unlink()
    file.mkdir()


SPOILED: list[Callable[[Path], None]] = [
    flip,
    link,
    hard_link,
    fold,
    Path.unlink,
    lambda file: os.truncate(file, 3),
    lambda file: os.truncate(file, 0),
    lambda file: os.truncate(file, 100 << 20),
]


@pytest.mark.parametrize("name", ["patch-00001.bin", "frames", "unfinished"])
@pytest.mark.parametrize("spoil", SPOILED)
def test_what_a_killed_diff_left_is_not_believed(
    spoil: Callable[[Path], None], name: str, pair: Path, killed: Path, tmp_path: Path
) -> None:
    spoiled = left(killed, "delta", tmp_path)
    spoil(spoiled / name)
    before = victim_in(tmp_path)

    ckpt.diff(pair / "base", pair / "target", tmp_path / "delta")

    made = ckpt.apply(pair / "base", tmp_path / "delta", tmp_path / "made")
    assert made.seal == ckpt.read_manifest(pair / "target").seal
    assert sorted(files(tmp_path / "delta")) == ["delta.pb", "patch-00001.bin"]
    assert victim_in(tmp_path) == before
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("name", ["weights.0", "unfinished"])
@pytest.mark.parametrize("spoil", SPOILED)
def test_what_a_killed_apply_left_is_not_believed(
    spoil: Callable[[Path], None], name: str, pair: Path, killed: Path, tmp_path: Path
) -> None:
    spoiled = left(killed, "made", tmp_path)
    spoil(spoiled / name)
    (spoiled / "docs").mkdir()
    (spoiled / "docs" / "readme").write_text("half")
    before = victim_in(tmp_path)

    ckpt.apply(pair / "base", pair / "whole", tmp_path / "made")

    assert files(tmp_path / "made") == files(pair / "made")
    assert victim_in(tmp_path) == before
    assert list(tmp_path.glob(".*")) == []


def test_a_file_that_was_whole_already_is_kept(
    pair: Path, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled = left(killed, "made", tmp_path)
    shutil.copytree(pair / "made", spoiled, dirs_exist_ok=True)
    decoded = count(monkeypatch, Patches, "decode")

    ckpt.apply(pair / "base", pair / "whole", tmp_path / "made")

    assert len(decoded) == 1  # the attachment's
    assert files(tmp_path / "made") == files(pair / "made")


def test_other_work_begins_anew(pair: Path, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(killed, "delta", tmp_path)
    encoded = count(monkeypatch, FrameWriter, "_encoded")

    ckpt.diff(pair / "target", pair / "base", tmp_path / "delta")

    assert len(encoded) == FRAMES
    assert (
        ckpt.apply(pair / "target", tmp_path / "delta", tmp_path / "made").root
        == ckpt.read_manifest(pair / "base").root
    )
    assert list(tmp_path.glob(".*")) == []


def test_what_another_writer_holds_is_left_alone(pair: Path, killed: Path, tmp_path: Path) -> None:
    spoiled = left(killed, "delta", tmp_path)
    before = files(spoiled)
    holder = os.open(spoiled, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        ckpt.diff(pair / "base", pair / "target", tmp_path / "delta")
    finally:
        os.close(holder)

    assert files(spoiled) == before
