"""``mmap=False`` reads each chunk once, checks the very copy that it gives back, and reads nothing else."""

import os
from pathlib import Path

import pytest
import torch

import ckpt
from ckpt.disk.folder import Unread
from tests.ckpt.equality import same

CHUNK = 1 << 20


def large_state() -> dict[str, torch.Tensor]:
    """Some storages of several chunks, ending inside one, and some small ones."""
    torch.manual_seed(0)
    return {
        "long": torch.rand(900_001),
        "short": torch.rand(3),
        "empty": torch.empty(0),
        "channels_last": torch.rand(8, 3, 40, 40).to(memory_format=torch.channels_last),
        "gaps": torch.rand(2000)[::2],
    }


def flip(folder: Path, name: str, at: int) -> None:
    """Turn one bit of a tensor's storage."""
    manifest = ckpt.read_manifest(folder)
    place = manifest.placements[manifest.by_name[name].storage]
    with open(folder / manifest.files[place.file].name, "r+b") as file:
        file.seek(place.offset + at)
        byte = file.read(1)[0]
        file.seek(place.offset + at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("level", ["none", "crc32", "lazy", "sha256"])
def test_every_level_gives_the_state_back(tmp_path: Path, level: str) -> None:
    state = large_state()
    ckpt.save(state, tmp_path / "c", shard_bytes=CHUNK)

    loaded = ckpt.load(tmp_path / "c", mmap=False, verify=level)  # type: ignore[arg-type]

    assert same(loaded, state)
    with ckpt.open(tmp_path / "c", mmap=False, verify=level) as opened:  # type: ignore[arg-type]
        assert all(same(opened[name], state[name]) for name in state)


@pytest.mark.parametrize("level", ["crc32", "lazy", "sha256"])
@pytest.mark.parametrize("at", [0, CHUNK - 1, CHUNK, 2 * CHUNK + (256 << 10), 3_600_003])
def test_a_flipped_bit_is_named_wherever_it_is(tmp_path: Path, level: str, at: int) -> None:
    ckpt.save(large_state(), tmp_path / "c")
    flip(tmp_path / "c", "long", at)

    with pytest.raises(ckpt.CorruptChunkError, match="'long'") as caught:
        ckpt.load(tmp_path / "c", mmap=False, verify=level)  # type: ignore[arg-type]

    assert caught.value.chunk == at // CHUNK
    with pytest.raises(ckpt.CorruptChunkError), ckpt.open(tmp_path / "c", mmap=False, verify=level) as opened:  # type: ignore[arg-type]
        _ = opened["long"]


def test_what_was_not_asked_for_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt.save(large_state(), tmp_path / "c")
    flip(tmp_path / "c", "long", 5)
    read_bytes = 0
    read = Unread.read

    def counted(self: Unread, start: int, end: int) -> None:
        nonlocal read_bytes
        read_bytes += end - start
        read(self, start, end)

    monkeypatch.setattr(Unread, "read", counted)

    loaded = ckpt.load(tmp_path / "c", mmap=False, keys=["short", "channels_last"])

    assert same(loaded["short"], large_state()["short"])
    headers = sum(record.header_bytes for record in ckpt.read_manifest(tmp_path / "c").files)
    assert read_bytes == headers + 3 * 4 + 8 * 3 * 40 * 40 * 4


def test_no_file_stays_open(tmp_path: Path) -> None:
    ckpt.save(large_state(), tmp_path / "c", shard_bytes=CHUNK)
    before = len(os.listdir("/proc/self/fd"))

    ckpt.load(tmp_path / "c", mmap=False)
    opened = ckpt.open(tmp_path / "c", mmap=False)
    flip(tmp_path / "c", "long", 5)
    with pytest.raises(ckpt.CorruptChunkError):
        ckpt.load(tmp_path / "c", mmap=False)
    with pytest.raises(ckpt.CorruptChunkError):
        ckpt.open(tmp_path / "c", mmap=False, verify="crc32")
    with pytest.raises(ckpt.RootMismatchError):
        ckpt.open(tmp_path / "c", mmap=False, root="sha256:" + 64 * "0")
    (weights, *_) = sorted((tmp_path / "c").glob("weights-*"))
    os.truncate(weights, 100)
    with pytest.raises(ckpt.CorruptFileError):
        ckpt.load(tmp_path / "c", mmap=False)

    assert len(os.listdir("/proc/self/fd")) == before
    assert same(opened["long"], large_state()["long"])  # it was read when it was opened


def test_a_file_that_becomes_shorter_meanwhile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt.save(large_state(), tmp_path / "c")
    (weights,) = (tmp_path / "c").glob("weights-*")
    read = Unread.read

    def cut_first(self: Unread, start: int, end: int) -> None:
        if start:
            os.truncate(weights, CHUNK)
        read(self, start, end)

    monkeypatch.setattr(Unread, "read", cut_first)

    with pytest.raises(ckpt.CorruptFileError, match=weights.name):
        ckpt.load(tmp_path / "c", mmap=False)
