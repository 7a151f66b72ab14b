"""A delta is verified frame by frame and mended from a good copy, of which the bad frames alone are fetched."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ckpt
from ckpt.__main__ import main
from tests.ckpt.range_server import range_server
from tests.ckpt.signers import FOREIGN, OLD, trusting

PATCH = "patch-00001.bin"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints ``base`` and ``target``, and the signed ``delta`` of three frames between them."""
    folder = tmp_path_factory.mktemp("pair")
    random = torch.Generator().manual_seed(3)
    state = {name: torch.randn(100_000, generator=random) for name in ("a", "b", "c")}
    ckpt.save(state, folder / "base")
    moved = {name: tensor + 1e-3 * torch.randn(100_000, generator=random) for name, tensor in state.items()}
    ckpt.save(moved, folder / "target")
    assert len(ckpt.diff(folder / "base", folder / "target", folder / "delta", sign=OLD).frames()) == 3
    return folder


@pytest.fixture
def delta(pair: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair / "delta", tmp_path / "delta"))


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_good_delta_verifies(pair: Path, delta: Path) -> None:
    seen: list[tuple[int, int]] = []

    report = ckpt.verify(delta, trust=trusting(OLD), progress=lambda done, total: seen.append((done, total)))

    size = (delta / PATCH).stat().st_size
    assert report.ok
    assert report.root == ckpt.read_manifest(pair / "target").root
    assert report.checked_bytes == size
    assert report.accepted is not None
    assert seen[-1] == (size, size)


def test_each_bad_frame_is_listed(delta: Path) -> None:
    frames = ckpt.read_delta(delta).frames()
    for frame in frames[::2]:
        flip(delta / PATCH, frame.patch_offset + 7)

    report = ckpt.verify(delta)

    assert not report.ok
    assert [fault.facts["frame"] for fault in report.faults] == [
        f"the frame at byte {frame.patch_offset} of {PATCH}" for frame in frames[::2]
    ]


def test_the_bad_frame_alone_is_fetched(pair: Path, delta: Path) -> None:
    _, frame, _ = ckpt.read_delta(delta).frames()
    flip(delta / PATCH, frame.patch_offset)

    with range_server(pair) as server:
        report = ckpt.repair(delta, f"{server.url}/delta")

    assert report.ok
    assert report.restored == (f"{PATCH}: {frame.encoded_size} bytes",)
    assert server.bytes_of(PATCH) == frame.encoded_size
    assert files(delta) == files(pair / "delta")


@pytest.mark.parametrize(
    "spoil",
    [
        Path.unlink,
        lambda file: os.truncate(file, 0),
        lambda file: os.truncate(file, 1000),
        lambda file: os.truncate(file, 1 << 20),
        lambda file: file.write_bytes(bytes(file.stat().st_size)),
    ],
)
def test_a_patch_that_is_missing_or_of_another_size_is_restored(
    spoil: Callable[[Path], None], pair: Path, delta: Path
) -> None:
    spoil(delta / PATCH)
    assert not ckpt.verify(delta).ok

    assert ckpt.repair(delta, pair / "delta").ok

    assert files(delta) == files(pair / "delta")
    assert ckpt.apply(pair / "base", delta, delta.parent / "made").root == ckpt.read_manifest(pair / "target").root


def test_what_the_copy_does_not_have_remains(pair: Path, delta: Path, tmp_path: Path) -> None:
    first, second, _ = ckpt.read_delta(delta).frames()
    copy = Path(shutil.copytree(delta, tmp_path / "copy"))
    flip(delta / PATCH, first.patch_offset)
    flip(delta / PATCH, second.patch_offset)
    flip(copy / PATCH, second.patch_offset)

    report = ckpt.repair(delta, copy)

    assert [fault.facts["frame"] for fault in report.faults] == [f"the frame at byte {second.patch_offset} of {PATCH}"]


def test_a_broken_description_is_a_fault_and_is_not_restored(pair: Path, delta: Path) -> None:
    flip(delta / "delta.pb", 40)

    report = ckpt.verify(delta)

    assert report.root is None
    assert [type(fault) for fault in report.faults] == [ckpt.FormatError]
    with pytest.raises(ckpt.FormatError):
        ckpt.repair(delta, pair / "delta")


def test_another_root_or_signer_is_refused_and_nothing_written(pair: Path, delta: Path) -> None:
    flip(delta / PATCH, 5)
    before = files(delta)
    base = ckpt.read_manifest(pair / "base").root

    assert [type(fault) for fault in ckpt.verify(delta, root=base, trust=trusting(FOREIGN)).faults] == [
        ckpt.RootMismatchError,
        ckpt.UntrustedKeyError,
        ckpt.CorruptFrameError,
    ]
    with pytest.raises(ckpt.RootMismatchError):
        ckpt.repair(delta, pair / "delta", root=base)
    with pytest.raises(ckpt.UntrustedKeyError):
        ckpt.repair(delta, pair / "delta", trust=trusting(FOREIGN))
    assert files(delta) == before


@pytest.mark.parametrize("source", ["base", "nothing"])
def test_a_source_that_is_no_delta_is_named(source: str, pair: Path, delta: Path) -> None:
    flip(delta / PATCH, 5)

    with pytest.raises(ckpt.SourceError, match=r"delta\.pb"):
        ckpt.repair(delta, pair / source)


def test_files_that_are_no_part_of_it_are_told(delta: Path) -> None:
    (delta / "note").write_text("mine")

    report = ckpt.verify(delta)

    assert report.ok
    assert report.foreign == ("note",)


def test_the_command_line_tells_what_is_in_a_delta(pair: Path, delta: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(delta), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)

    assert facts["base_root"] == ckpt.read_manifest(pair / "base").root
    assert facts["target_bytes"] == 3 * 400_000
    assert facts["ratio"] == round(3 * 400_000 / facts["size_bytes"], 2)
    assert facts["storages"] == {"patch": 3}
    assert sum(facts["frames"].values()) == 3
    assert main(["inspect", str(delta)]) == 0
    assert "patch=3" in capsys.readouterr().out


def test_the_command_line(pair: Path, delta: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(delta / PATCH, 5)

    assert main(["verify", str(delta), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"][0]["error"] == "CorruptFrameError"
    assert main(["repair", str(delta), "--from", str(pair / "delta")]) == 0
    assert main(["verify", str(delta)]) == 0
    assert "match by sha256" in capsys.readouterr().out
