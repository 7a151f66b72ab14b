"""A damaged checkpoint is mended from a good copy: only what is bad is fetched, and nothing is written unproved."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import ckpt
from ckpt.__main__ import main
from tests.ckpt.equality import same
from tests.ckpt.safetensors_files import weights
from tests.hostile.edits import put, rewrite_manifest

MIB = 1 << 20


def state() -> dict[str, torch.Tensor]:
    """Chunks of every kind: a large tensor, small ones, views of one storage, a channels-last one, an odd dtype."""
    make = torch.Generator().manual_seed(0)
    flat = torch.randn(400_000, generator=make)
    return weights() | {
        "large": torch.randn(3 << 18, generator=make),
        "first": flat[:200_000],
        "second": flat[200_000:].reshape(2, -1),
        "last": torch.randn(8, 16, 33, 9, generator=make).to(memory_format=torch.channels_last),
        "strided": torch.arange(9.0)[::2],
        "complex": torch.ones(3, dtype=torch.complex128),
    }


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    (folder / "note").write_bytes(bytes(range(256)) * 8000)
    attachments = {"docs/note": folder / "note", "empty": folder / "none"}
    (folder / "none").write_bytes(b"")
    ckpt.save(state(), folder / "c", attachments=attachments, metadata={"k": "v"}, shard_bytes=4 * MIB)
    return folder / "c"


@pytest.fixture
def damaged(pristine: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(pristine, tmp_path / "damaged"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path: Path, place: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place, os.SEEK_SET if place >= 0 else os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def place_of(folder: Path, tensor: str = "large") -> tuple[Path, int]:
    """The file of a tensor's storage, and its first byte there."""
    manifest = ckpt.read_manifest(folder)
    place = manifest.placements[manifest.by_name[tensor].storage]
    return folder / manifest.files[place.file].name, place.offset


def weights_file(folder: Path) -> Path:
    return place_of(folder)[0]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda folder: flip(weights_file(folder), -1),
    "a flipped bit in a header": lambda folder: flip(weights_file(folder), 100),
    "a flipped bit in the index": lambda folder: flip(folder / "model.safetensors.index.json", 10),
    "a flipped bit in bytes of no name": lambda folder: flip(next(folder.glob("extra-*")), -1),
    "a flipped bit in an attachment": lambda folder: flip(folder / "docs" / "note", MIB + 7),
    "a truncated file": lambda folder: os.truncate(weights_file(folder), 5000),
    "an emptied file": lambda folder: os.truncate(weights_file(folder), 0),
    "an extended file": lambda folder: os.truncate(weights_file(folder), 50 * MIB),
    "a truncated attachment": lambda folder: os.truncate(folder / "docs" / "note", 7),
    "an extended attachment": lambda folder: os.truncate(folder / "empty", 7),
    "a missing file": lambda folder: weights_file(folder).unlink(),
    "a missing index": lambda folder: (folder / "model.safetensors.index.json").unlink(),
    "a missing folder": lambda folder: shutil.rmtree(folder / "docs"),
    "a missing empty attachment": lambda folder: (folder / "empty").unlink(),
    "all files missing": lambda folder: [path.unlink() for path in folder.glob("*.safetensors*")],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_kind_of_damage_is_mended_byte_for_byte(damage: str, damaged: Path, pristine: Path) -> None:
    DAMAGES[damage](damaged)
    assert not ckpt.verify(damaged).ok

    report = ckpt.repair(damaged, pristine)

    assert report.ok
    assert contents(damaged) == contents(pristine)


def test_what_is_good_is_not_written(damaged: Path, pristine: Path) -> None:
    bad = weights_file(damaged)
    flip(bad, -1)
    for path in damaged.rglob("*"):
        if path.is_file() and path != bad:
            path.chmod(0o444)
    before = {path: path.stat().st_mtime_ns for path in damaged.rglob("*") if path.is_file()}

    assert ckpt.repair(damaged, pristine).ok

    assert {path for path, time in before.items() if path.stat().st_mtime_ns != time} == {bad}


def test_a_sound_checkpoint_stays_as_it_is(damaged: Path, pristine: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in damaged.rglob("*")}

    assert ckpt.repair(damaged, pristine).ok

    assert {path: path.stat().st_mtime_ns for path in damaged.rglob("*")} == before


def test_progress_tells_what_was_checked(damaged: Path, pristine: Path) -> None:
    seen: list[tuple[int, int]] = []
    weights_file(damaged).unlink()

    ckpt.repair(damaged, pristine, progress=lambda done, total: seen.append((done, total)))

    total = sum(len(data) for name, data in contents(damaged).items() if name != "manifest.pb")
    assert seen[-1] == (total, total)


# --- copies ---------------------------------------------------------------------------------------------------------


def test_a_copy_may_be_sharded_in_another_way(damaged: Path, tmp_path: Path) -> None:
    ckpt.save(state(), tmp_path / "copy", shard_bytes=64 << 30)
    for path in damaged.glob("*.safetensors"):
        path.unlink()

    assert ckpt.repair(damaged, tmp_path / "copy").ok


def test_a_copy_may_be_another_version_that_shares_what_is_bad(damaged: Path, tmp_path: Path) -> None:
    ckpt.save({"other": torch.ones(5), "renamed": state()["large"]}, tmp_path / "copy")
    flip(*place_of(damaged))

    assert ckpt.repair(damaged, tmp_path / "copy").ok


def _plain() -> dict[str, torch.Tensor]:
    return {name: tensor.contiguous().clone() for name, tensor in state().items() if tensor.dtype != torch.complex128}


def test_plain_safetensors_give_tensors_by_name(damaged: Path, tmp_path: Path) -> None:
    """Two views of one storage are put together; what lies otherwise in memory is not to be had."""
    save_file(_plain(), tmp_path / "plain.safetensors")
    for path in damaged.glob("weights-*"):
        os.truncate(path, 100)

    assert ckpt.repair(damaged, tmp_path / "plain.safetensors").ok


def test_a_folder_of_plain_safetensors_gives_tensors_by_name(damaged: Path, tmp_path: Path) -> None:
    home = {name: f"{index % 2}.safetensors" for index, name in enumerate(_plain())}
    for shard in ("0.safetensors", "1.safetensors"):
        save_file({name: tensor for name, tensor in _plain().items() if home[name] == shard}, tmp_path / shard)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": home}))
    for path in damaged.glob("weights-*"):
        os.truncate(path, 100)

    assert ckpt.repair(damaged, tmp_path).ok


def test_other_bytes_under_the_same_name_are_not_written(damaged: Path, tmp_path: Path) -> None:
    save_file(_plain() | {"large": torch.zeros(3 << 18)}, tmp_path / "plain.safetensors")
    flip(*place_of(damaged))
    before = contents(damaged)

    report = ckpt.repair(damaged, tmp_path / "plain.safetensors")

    assert [type(fault) for fault in report.faults] == [ckpt.CorruptChunkError]
    assert contents(damaged) == before


def test_a_copy_that_is_damaged_too_mends_what_it_can(damaged: Path, pristine: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(pristine, tmp_path / "copy"))
    file, start = place_of(damaged)
    flip(file, start)
    flip(file, start + MIB)
    flip(copy / file.name, start + MIB)

    report = ckpt.repair(damaged, copy)

    assert [fault.chunk for fault in report.faults] == [1]
    assert ckpt.repair(damaged, pristine).ok


@pytest.mark.parametrize("source", ["nowhere", "empty", "ftp://host/x", "http:///x", "https://host:99999/x"])
def test_a_copy_that_is_none_is_refused(source: str, damaged: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    flip(weights_file(damaged), -1)
    before = contents(damaged)

    with pytest.raises((ckpt.SourceError, ckpt.NotACheckpointError)):
        ckpt.repair(damaged, source if "://" in source else tmp_path / source)
    assert contents(damaged) == before


# --- adopted files --------------------------------------------------------------------------------------------------


@pytest.fixture
def adopted(tmp_path: Path) -> Path:
    file = tmp_path / "mine" / "x.safetensors"
    (tmp_path / "theirs").mkdir()
    file.parent.mkdir()
    save_file(weights(), file)
    shutil.copy(file, tmp_path / "theirs" / "other-name.safetensors")
    ckpt.adopt(file)
    return file


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: flip(path, -1),
        lambda path: flip(path, 30),
        lambda path: os.truncate(path, 20),
        lambda path: os.truncate(path, 9 * MIB),
        lambda path: path.unlink(),
    ],
)
def test_an_adopted_file_is_mended_with_its_own_header(
    damage: Callable[[Path], object], adopted: Path, tmp_path: Path
) -> None:
    before = adopted.read_bytes()
    damage(adopted)
    assert not ckpt.verify(adopted).ok

    assert ckpt.repair(adopted, tmp_path / "theirs" / "other-name.safetensors").ok
    assert adopted.read_bytes() == before


# --- manifests ------------------------------------------------------------------------------------------------------

MANIFEST_DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda folder: flip(folder / "manifest.pb", 100),
    "a missing one": lambda folder: (folder / "manifest.pb").unlink(),
    "an emptied one": lambda folder: os.truncate(folder / "manifest.pb", 0),
    "one that was edited and sealed again": lambda folder: rewrite_manifest(
        folder, lambda message: put(message.storages[0], sha256=b"\7" * len(message.storages[0].sha256))
    ),
}


@pytest.mark.parametrize("damage", MANIFEST_DAMAGES)
def test_a_bad_manifest_is_restored_for_an_expected_root(damage: str, damaged: Path, pristine: Path) -> None:
    root = ckpt.read_manifest(pristine).root
    MANIFEST_DAMAGES[damage](damaged)
    flip(next(damaged.glob("weights-*")), -1)

    assert ckpt.repair(damaged, pristine, root=root).ok
    assert contents(damaged) == contents(pristine)


def test_a_bad_manifest_is_not_restored_without_an_expected_root(damaged: Path, pristine: Path) -> None:
    flip(damaged / "manifest.pb", 100)
    before = contents(damaged)

    with pytest.raises(ckpt.FormatError) as caught:
        ckpt.repair(damaged, pristine)
    assert "root=, trust=" in caught.value.__notes__[0]
    assert contents(damaged) == before


def test_a_copy_of_another_root_does_not_give_its_manifest(damaged: Path, tmp_path: Path) -> None:
    root = ckpt.read_manifest(damaged).root
    ckpt.save({"w": torch.ones(3)}, tmp_path / "copy")
    flip(damaged / "manifest.pb", 100)
    before = contents(damaged)

    with pytest.raises(ckpt.RootMismatchError):
        ckpt.repair(damaged, tmp_path / "copy", root=root)
    assert contents(damaged) == before


def test_a_sound_checkpoint_of_another_root_is_not_written_over(pristine: Path, tmp_path: Path) -> None:
    ckpt.save({"w": torch.ones(3)}, tmp_path / "c")
    before = contents(tmp_path / "c")

    with pytest.raises(ckpt.RootMismatchError):
        ckpt.repair(tmp_path / "c", pristine, root=ckpt.read_manifest(pristine).root)
    assert contents(tmp_path / "c") == before


def test_plain_safetensors_have_no_manifest_to_give(damaged: Path, tmp_path: Path) -> None:
    root = ckpt.read_manifest(damaged).root
    save_file(_plain(), tmp_path / "plain.safetensors")
    (damaged / "manifest.pb").unlink()

    with pytest.raises(ckpt.SourceError, match=r"no manifest\.pb"):
        ckpt.repair(damaged, tmp_path / "plain.safetensors", root=root)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> ckpt.KeyFiles:
    return ckpt.keygen(tmp_path_factory.mktemp("keys") / "mine.pem")


@pytest.mark.parametrize("damage", MANIFEST_DAMAGES)
def test_a_bad_manifest_is_restored_for_a_trusted_signature(
    damage: str, keys: ckpt.KeyFiles, damaged: Path, pristine: Path
) -> None:
    ckpt.sign(damaged, keys.private)
    MANIFEST_DAMAGES[damage](damaged)

    report = ckpt.repair(damaged, pristine, trust=[keys.public])

    assert report.ok
    assert report.accepted is not None
    assert (damaged / "manifest.pb").read_bytes() == (pristine / "manifest.pb").read_bytes()


def test_a_copy_that_is_not_what_was_signed_does_not_give_its_manifest(
    keys: ckpt.KeyFiles, damaged: Path, tmp_path: Path
) -> None:
    ckpt.sign(damaged, keys.private)
    ckpt.save(state(), tmp_path / "copy", metadata={"k": "another"})
    (damaged / "manifest.pb").unlink()

    with pytest.raises(ckpt.WrongSubjectError):
        ckpt.repair(damaged, tmp_path / "copy", trust=[keys.public])
    assert not (damaged / "manifest.pb").exists()


def test_a_checkpoint_that_nobody_signed_is_not_mended_for_trust(
    keys: ckpt.KeyFiles, damaged: Path, pristine: Path
) -> None:
    flip(*place_of(damaged))
    before = contents(damaged)

    with pytest.raises(ckpt.UnsignedError):
        ckpt.repair(damaged, pristine, trust=[keys.public])
    assert contents(damaged) == before


def test_what_is_no_checkpoint_is_not_made_one(pristine: Path, tmp_path: Path) -> None:
    with pytest.raises(ckpt.NotACheckpointError):
        ckpt.repair(tmp_path / "nowhere", pristine, root=ckpt.read_manifest(pristine).root)
    assert not (tmp_path / "nowhere").exists()


# --- links and kills ------------------------------------------------------------------------------------------------


def test_nothing_is_written_through_a_link(damaged: Path, pristine: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    file = weights_file(damaged)
    elsewhere.write_text("mine")
    file.unlink()
    file.symlink_to(elsewhere)
    shutil.rmtree(damaged / "docs")
    (tmp_path / "target").mkdir()
    (damaged / "docs").symlink_to(tmp_path / "target")

    report = ckpt.repair(damaged, pristine)

    assert {fault.facts["file"] for fault in report.faults} == {file.name, "docs/note"}
    assert elsewhere.read_text() == "mine"
    assert [*(tmp_path / "target").iterdir()] == []


# Forks a repairer that is killed at its n-th write, n = 1, 2, … until one lives; tells the faults left each time.
_KILLED = """
import json, os, shutil, signal, sys, ckpt
from pathlib import Path
damaged, pristine = map(Path, sys.argv[1:])
def die_at(count):
    left, write = [count], os.pwrite
    def dying(*arguments):
        left[0] -= 1
        if left[0] == 0:
            write(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(*arguments)
    os.pwrite = dying
for path in damaged.glob("*.safetensors"):
    os.truncate(path, 3000)
found, status = [], None
while status != 0:
    child = os.fork()
    if child == 0:
        die_at(3)
        os._exit(0 if ckpt.repair(damaged, pristine).ok else 1)
    status = os.waitpid(child, 0)[1]
    found.append([status, len(ckpt.verify(damaged).faults)])
print(json.dumps(found))
"""


def test_a_repair_that_is_killed_again_and_again_still_finishes(damaged: Path, pristine: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(damaged), str(pristine)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )

    assert done.returncode == 0, done.stderr
    *killed, last = json.loads(done.stdout)
    assert {status for status, _ in killed} == {signal.SIGKILL}
    assert len(killed) > 3
    assert last == [0, 0]
    assert contents(damaged) == contents(pristine)


# --- words ----------------------------------------------------------------------------------------------------------


def test_an_error_names_the_command_that_mends(damaged: Path, pristine: Path) -> None:
    flip(weights_file(damaged), -1)

    with pytest.raises(ckpt.CorruptChunkError) as caught:
        ckpt.load(damaged)

    assert f"'python -m ckpt repair {damaged} --from COPY'" in str(caught.value)
    assert main(["repair", str(damaged), "--from", str(pristine)]) == 0
    assert same(ckpt.load(damaged), state())


def test_the_command_line_tells_what_remains(damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ckpt.save({"other": torch.ones(5)}, tmp_path / "copy")
    flip(weights_file(damaged), -1)

    assert main(["repair", str(damaged), "--from", str(tmp_path / "copy"), "--json"]) == 1

    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [fault["error"] for fault in facts["faults"]] == ["CorruptChunkError"]
