"""A killed ``squash`` is gone on with, not started over; what it left is believed as far as it is proved."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.deltas.composing import _Composer
from ckpt.deltas.encoding import FrameWriter
from ckpt.deltas.squashing import AT_ONCE
from tests.ckpt.chains import ADDING, save_chain
from tests.ckpt.killed import DIES_AFTER_FRAMES, count, files, flip, kill

TENSORS = 4  # a frame each
KILLED_AFTER = 3  # frames of the second delta on the way

SQUASH = DIES_AFTER_FRAMES + "ckpt.squash(sys.argv[4:], sys.argv[3], base=sys.argv[2])"

WITHOUT_BASE = """
import os, signal, sys
import ckpt

def die(done, total):
    if done * 4 > total * 3:
        os.kill(os.getpid(), signal.SIGKILL)

ckpt.squash(sys.argv[2:], sys.argv[1], progress=die)
"""


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many deltas that one is made on the way; ``with`` and ``without`` the base, what was squashed at one go."""
    folder = tmp_path_factory.mktemp("chain")
    random = np.random.default_rng(3)
    state = {f"t{number}": random.integers(0, 1 << 16, 1 << 19, np.uint16) for number in range(TENSORS)}
    states = [state]
    for _ in range(AT_ONCE + 1):
        states.append({name: old + random.integers(0, 9, old.shape, np.uint16) for name, old in states[-1].items()})
    whole = save_chain(folder, states, codecs=ADDING)
    ckpt.squash(whole, folder / "with", base=folder / "0")
    ckpt.squash(whole, folder / "without")
    ckpt.squash(whole[:AT_ONCE], folder / "another", codecs=["planes"])
    return folder


def deltas(chain: Path) -> list[Path]:
    return sorted(chain.glob("delta-*"))


@pytest.fixture(scope="module")
def killed(chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What killed calls left that were to make ``with`` and ``without``."""
    folder = tmp_path_factory.mktemp("killed")
    first = len(ckpt.read_delta(chain / "with").frames())  # the delta on the way has as many
    kill(SQUASH, first + KILLED_AFTER, chain / "0", folder / "with", *deltas(chain))
    kill(WITHOUT_BASE, folder / "without", *deltas(chain))
    return folder


def left(killed: Path, name: str, folder: Path) -> Path:
    """A copy of all that was left of ``name``; the folder of the deltas on the way."""
    for found in killed.glob(f".{name}.*.saving"):
        shutil.copytree(found, folder / found.name)
    (note,) = folder.glob(f".{name}.*.saving/unfinished")
    return note.parent


def test_a_killed_squash_encodes_the_rest_only(
    chain: Path, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(killed, "with", tmp_path)
    encoded = count(monkeypatch, FrameWriter, "_encoded")

    ckpt.squash(deltas(chain), tmp_path / "with", base=chain / "0")

    assert len(encoded) == len(ckpt.read_delta(chain / "with").frames()) - KILLED_AFTER
    assert files(tmp_path / "with") == files(chain / "with")
    assert list(tmp_path.glob(".*")) == []


def test_a_killed_squash_without_its_base_goes_on_at_its_last_step(
    chain: Path, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(killed, "without", tmp_path)
    composed = count(monkeypatch, _Composer, "_added")

    ckpt.squash(deltas(chain), tmp_path / "without")

    assert len(composed) == TENSORS
    assert files(tmp_path / "without") == files(chain / "without")
    assert list(tmp_path.glob(".*")) == []


def swap(file: Path) -> None:
    """Another delta, whole and between the same checkpoints."""
    shutil.rmtree(file.parent)
    shutil.copytree(file.parents[2] / "another", file.parent)


def link(file: Path) -> None:
    """A name that leads to somebody else's folder."""
    file.parent.rename(file.parents[2] / "victim")
    file.parent.symlink_to(file.parents[2] / "victim")
    flip(file)


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (flip, "delta.pb"),
        (flip, "patch-00001.bin"),
        (Path.unlink, "delta.pb"),
        (Path.unlink, "patch-00001.bin"),
        (swap, "delta.pb"),
        (link, "delta.pb"),
    ],
)
def test_what_a_killed_squash_left_is_not_believed(
    spoil: Callable[[Path], None], name: str, chain: Path, killed: Path, tmp_path: Path
) -> None:
    shutil.copytree(chain / "another", tmp_path / "another")
    (made,) = left(killed, "without", tmp_path).glob("1=*")
    spoil(made / name)

    ckpt.squash(deltas(chain), tmp_path / "without")

    assert files(tmp_path / "without") == files(chain / "without")
    assert list(tmp_path.glob(".*")) == []
    assert not (tmp_path / "victim").exists() or os.listdir(tmp_path / "victim")


def test_other_work_begins_anew(chain: Path, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(killed, "without", tmp_path)
    composed = count(monkeypatch, _Composer, "_added")

    ckpt.squash(deltas(chain)[:-1], tmp_path / "without")

    assert len(composed) == TENSORS
    assert list(tmp_path.glob(".*")) == []
    made = ckpt.apply(chain / "0", tmp_path / "without", tmp_path / "made")
    assert made.root == ckpt.read_manifest(chain / f"{AT_ONCE}").root
