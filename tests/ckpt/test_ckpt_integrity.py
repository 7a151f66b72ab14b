"""Whatever is changed on disk is found before a tensor is exposed, and named."""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

import ckpt
from ckpt.format.names import MANIFEST_NAME
from tests.ckpt.signers import OLD


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    note = tmp_path / "note.txt"
    note.write_text("hello")
    state = {"a": torch.arange(6.0), "odd": torch.arange(9.0).reshape(3, 3)[:, ::2], "n": 3}
    ckpt.save(state, tmp_path / "c", attachments={"docs/note.txt": note}, metadata={"k": "v"}, sign=OLD)
    return tmp_path / "c"


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_single_bit_flip_is_found(checkpoint: Path, step: int) -> None:
    """All bits of all files, and of header padding every byte once; or one bit of every seventh byte."""
    missed = []
    for file in sorted(path for path in checkpoint.rglob("*") if path.is_file()):
        data = bytearray(file.read_bytes())
        for position in range(0, len(data), step):
            for bit in range(8) if step == 1 and data[position] != 0x20 else (position % 8,):
                data[position] ^= 1 << bit
                file.write_bytes(data)
                if ckpt.verify(checkpoint).ok:
                    missed.append((file.name, position, bit))
                data[position] ^= 1 << bit
        file.write_bytes(data)

    assert missed == []
    assert ckpt.verify(checkpoint).ok


def test_a_flipped_bit_is_named_by_every_level(tmp_path: Path) -> None:
    ckpt.save({"first": torch.zeros(1 << 19), "w": torch.zeros(1 << 20)}, tmp_path / "c")
    file = next((tmp_path / "c").glob("weights-*"))
    with open(file, "r+b") as handle:
        handle.seek(-5, os.SEEK_END)
        handle.write(b"\1")
    # A header of 4096 bytes, 2 MiB of 'first', three chunks of 'w'.
    expected = r"chunk 3 of the storage of 'w' .* \(bytes 5246976–6295551 of weights-00001-"

    for level in ("crc32", "sha256", "lazy"):
        with pytest.raises(ckpt.CorruptChunkError, match=expected):
            ckpt.load(tmp_path / "c", verify=level)
    with ckpt.open(tmp_path / "c") as opened:
        assert opened["first"].sum() == 0
        assert opened.slice("w", slice(0, 10)).sum() == 0
        with pytest.raises(ckpt.CorruptChunkError) as caught:
            opened.slice("w", slice(-10, None))

    assert caught.value.chunk == 3
    assert caught.value.end - caught.value.start == 1 << 20
    report = ckpt.verify(tmp_path / "c")
    assert [type(fault) for fault in report.faults] == [ckpt.CorruptChunkError]


def _truncate(folder: Path) -> None:
    file = next(folder.glob("weights-*"))
    os.truncate(file, file.stat().st_size - 1)


def _extend(folder: Path) -> None:
    with open(next(folder.glob("weights-*")), "ab") as file:
        file.write(b"x")


def _remove(folder: Path) -> None:
    next(folder.glob("extra-*")).unlink()


def _link(folder: Path) -> None:
    file = next(folder.glob("extra-*"))
    moved = file.rename(folder.parent / "elsewhere")
    file.symlink_to(moved)


def _swap_names(folder: Path) -> None:
    """Two names exchanged inside the safetensors header."""
    file = next(folder.glob("weights-*"))
    file.write_bytes(file.read_bytes().replace(b'"a"', b'"b"'))


def _other_manifest(folder: Path) -> None:
    ckpt.save({"a": torch.arange(6.0) + 1}, folder.parent / "other")
    shutil.copy(folder.parent / "other" / MANIFEST_NAME, folder / MANIFEST_NAME)


def _cut_manifest(folder: Path) -> None:
    os.truncate(folder / MANIFEST_NAME, 40)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncate, "the size of 'weights-"),
        (_extend, "the size of 'weights-"),
        (_remove, "the file of 'extra-"),
        (_link, "the file of 'extra-"),
        (_swap_names, "the header of 'weights-"),
        (_other_manifest, "the file of 'weights-"),
        (_cut_manifest, "a body of 0 bytes|beginning|expected"),
    ],
)
def test_damaged_folders_are_refused_by_name(damage: Callable[[Path], None], message: str, checkpoint: Path) -> None:
    damage(checkpoint)

    with pytest.raises(ckpt.CheckpointError, match=message):
        ckpt.load(checkpoint)
    assert not ckpt.verify(checkpoint).ok


def test_a_changed_attachment_is_refused(checkpoint: Path) -> None:
    (checkpoint / "docs" / "note.txt").write_text("hellO")

    with ckpt.open(checkpoint) as opened, pytest.raises(ckpt.CorruptChunkError, match=r"attachment 'docs/note.txt'"):
        opened.attachment("docs/note.txt")
    assert not ckpt.verify(checkpoint).ok


def test_another_root_than_asked_for_is_refused(checkpoint: Path) -> None:
    wrong = "sha256:" + "0" * 64

    with pytest.raises(ckpt.RootMismatchError, match=f"expected {wrong}"):
        ckpt.load(checkpoint, root=wrong)
    assert not ckpt.verify(checkpoint, root=wrong).ok


@pytest.mark.parametrize("name", ["nothing", "a folder without one", "a file"])
def test_what_is_no_checkpoint_is_said(name: str, tmp_path: Path) -> None:
    path = {"nothing": tmp_path / "none", "a folder without one": tmp_path, "a file": tmp_path / "file"}[name]
    (tmp_path / "file").write_text("")

    with pytest.raises(ckpt.NotACheckpointError, match=name):
        ckpt.load(path)


def test_an_unknown_level_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="expected one of none, crc32, lazy, sha256"):
        ckpt.load(checkpoint, verify="md5")  # type: ignore[arg-type]


def flip(file: Path, size_bytes: int, chunks: Iterable[int]) -> None:
    """One bit at the beginning of each of these chunks of a storage that ends with its file."""
    with open(file, "r+b") as handle:
        for chunk in chunks:
            handle.seek((chunk << 20) - size_bytes, os.SEEK_END)
            byte = handle.read(1)[0]
            handle.seek(-1, os.SEEK_CUR)
            handle.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("before", [0, 512])  # elements of the storage that lie before the tensor
@pytest.mark.parametrize("row", [0, 100, 255, 256, 767, -1])
def test_a_row_of_4_kib_is_proved_by_the_one_or_two_chunks_under_it_alone(
    row: int, before: int, tmp_path: Path
) -> None:
    flat = torch.arange(float(before + (1 << 20)))
    rows, size_bytes = flat[before:].view(1024, 1024), 4 * len(flat)
    ckpt.save({"first": flat[: before + 1], "w": rows}, tmp_path / "c")
    (file,) = (tmp_path / "c").glob("*.safetensors")
    first = 4 * before + 4096 * (row % 1024)
    under = range(first >> 20, (first + 4095 >> 20) + 1)
    others = set(range(-(-size_bytes >> 20))) - set(under)
    assert len(under) == (2 if before and row in (255, 767, -1) else 1)

    flip(file, size_bytes, others)
    with ckpt.open(tmp_path / "c") as opened:
        assert torch.equal(opened.slice("w", row), rows[row])
    flip(file, size_bytes, others)

    for chunk in under:
        flip(file, size_bytes, [chunk])
        with ckpt.open(tmp_path / "c") as opened, pytest.raises(ckpt.CorruptChunkError) as caught:
            opened.slice("w", row)
        assert caught.value.chunk == chunk
        flip(file, size_bytes, [chunk])
    assert ckpt.verify(tmp_path / "c").ok
