"""A resharded checkpoint is the same one in other files: root, seal, signatures, attachments and views."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ckpt
from ckpt.__main__ import main
from tests.ckpt.equality import same


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A checkpoint of one file, signed, with an attachment."""
    torch.manual_seed(0)
    flat = torch.rand(400_000)
    state = {"flat": flat, "view": flat[1000:2000], "rest": {str(number): torch.rand(100_000) for number in range(6)}}
    (tmp_path / "note.txt").write_text("n")
    ckpt.keygen(tmp_path / "key.pem")
    ckpt.save(
        state,
        tmp_path / "c",
        attachments={"note.txt": tmp_path / "note.txt"},
        metadata={"step": "7"},
        sign=tmp_path / "key.pem",
    )
    return tmp_path / "c"


def weights(folder: Path) -> int:
    return len(list(folder.glob("weights-*.safetensors")))


def test_it_is_the_same_checkpoint_in_other_files(signed: Path, tmp_path: Path) -> None:
    before, trust = ckpt.read_manifest(signed), [tmp_path / "key.pub.pem"]

    made = ckpt.reshard(signed, tmp_path / "out", shard_bytes=500_000, trust=trust)

    assert (made.root, made.seal, made.producer) == (before.root, before.seal, before.producer)
    assert (weights(signed), weights(tmp_path / "out")) == (1, 7)
    assert ckpt.verify(tmp_path / "out", trust=trust).ok
    assert same(ckpt.load(tmp_path / "out"), ckpt.load(signed))
    assert (tmp_path / "out" / "note.txt").read_text() == "n"
    ckpt.reshard(tmp_path / "out", tmp_path / "back", shard_bytes=2**40)
    assert weights(tmp_path / "back") == 1
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == {
        path.name: path.read_bytes() for path in signed.iterdir()
    }


def test_an_adopted_file_becomes_a_folder_of_ours(tmp_path: Path) -> None:
    save_file({"w": torch.arange(9.0), "v": torch.ones(3)}, tmp_path / "x.safetensors")
    root = ckpt.adopt(tmp_path / "x.safetensors").root

    made = ckpt.reshard(tmp_path / "x.safetensors", tmp_path / "out", shard_bytes=1)

    assert made.root == root
    assert not made.adopted
    assert weights(tmp_path / "out") == 2


def test_bad_bytes_and_unknown_keys_stop_it(signed: Path, tmp_path: Path) -> None:
    ckpt.keygen(tmp_path / "other.pem")
    with pytest.raises(ckpt.UntrustedKeyError):
        ckpt.reshard(signed, tmp_path / "out", shard_bytes=1000, trust=[tmp_path / "other.pub.pem"])
    with pytest.raises(ValueError, match="shard_bytes is 0"):
        ckpt.reshard(signed, tmp_path / "out", shard_bytes=0)
    (file,) = signed.glob("weights-*")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)

    with pytest.raises(ckpt.CorruptChunkError):
        ckpt.reshard(signed, tmp_path / "out", shard_bytes=1000)

    assert not (tmp_path / "out").exists()


def test_the_command_line_reshards(signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reshard", str(signed), str(tmp_path / "out"), "--shard-bytes", "500000"]) == 0

    assert ckpt.read_manifest(signed).root in capsys.readouterr().out
