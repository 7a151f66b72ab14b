"""Folders whose files are not what their names say: links, pipes, devices, other sizes, other bytes."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import torch

import ckpt
from ckpt.proto.checkpoint_pb2 import Manifest
from tests.hostile.edits import crc32_field, put, rewrite_manifest, storage
from tests.hostile.lies import Lie, Look

Trick = Callable[[Path], object]


def _link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _socket(path: Path) -> None:
    path.unlink()
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as bound:  # the name of a socket has at most 107 bytes
        bound.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


TRICKS: dict[str, Trick] = {
    "a link to it": _link,
    "a link to itself": _loop,
    "a FIFO": _fifo,
    "a link to an endless device": _device,
    "a folder": _folder,
    "a socket": _socket,
}


def at(pattern: str, tell: Trick) -> Trick:
    """Tell it of the one file of a folder that has such a name."""
    return lambda folder: tell(next(folder.glob(pattern)))


def tricked(pattern: str, *, found_by: Look) -> dict[str, Lie]:
    """Something else where a file should be: in each case the file is named."""
    says = f"'{pattern.removesuffix('*')}"
    return {
        f"{name} for {pattern}": Lie(at(pattern, trick), says, ckpt.CorruptFileError, found_by)
        for name, trick in TRICKS.items()
    }


def _swapped(folder: Path) -> None:
    """Two payload files under each other's names."""
    one, two = (next(folder.glob(pattern)) for pattern in ("weights-*", "extra-*"))
    one.rename(folder / "kept")
    two.rename(one)
    (folder / "kept").rename(two)


def _manifest_of_another(folder: Path) -> None:
    ckpt.save({"a": torch.arange(6.0)}, folder.parent / "another")
    shutil.copy(folder.parent / "another" / "manifest.pb", folder)


def _renamed_tensors(folder: Path) -> None:
    """Two names exchanged inside a safetensors header."""
    file = next(folder.glob("weights-*"))
    data = file.read_bytes().replace(b'"ints"', b'"????"').replace(b'"grad"', b'"ints"').replace(b'"????"', b'"grad"')
    file.write_bytes(data)


def _flip(folder: Path, *, crc_follows: bool) -> None:
    """A bit of ``ints``; the manifest's CRC-32 may be that of the new bytes."""

    def edit(message: Manifest) -> None:
        found = storage(message, "ints")
        file = folder / message.files[found.file].name
        data = bytearray(file.read_bytes())
        data[found.offset] ^= 1
        file.write_bytes(data)
        if crc_follows:
            put(found, crc32=crc32_field(data[found.offset : found.offset + found.size]))

    rewrite_manifest(folder, edit)


def _resized(by: int) -> Trick:
    return lambda file: os.truncate(file, file.stat().st_size + by)


FOLDERS: dict[str, Lie] = (
    tricked("manifest.pb", found_by=Look.MANIFEST)
    | tricked("weights-*", found_by=Look.HEADER)
    | tricked("extra-*", found_by=Look.HEADER)
    | tricked("model.safetensors.index.json", found_by=Look.HEADER)
    | {
        "no manifest": Lie(
            at("manifest.pb", Path.unlink), "expected a folder with manifest.pb", ckpt.NotACheckpointError
        ),
        "no payload": Lie(at("extra-*", Path.unlink), "'extra-", ckpt.CorruptFileError, Look.HEADER),
        "a byte less": Lie(at("extra-*", _resized(-1)), "the size of 'extra-", ckpt.CorruptFileError, Look.HEADER),
        "a byte more": Lie(at("extra-*", _resized(1)), "the size of 'extra-", ckpt.CorruptFileError, Look.HEADER),
        "a terabyte more": Lie(
            at("extra-*", _resized(1 << 40)), "the size of 'extra-", ckpt.CorruptFileError, Look.HEADER
        ),
        "files that exchanged names": Lie(_swapped, "the size of 'weights-", ckpt.CorruptFileError, Look.HEADER),
        "the manifest of another": Lie(
            _manifest_of_another, "the file of 'weights-", ckpt.CorruptFileError, Look.HEADER
        ),
        "tensors that exchanged names": Lie(
            _renamed_tensors, "the header of 'weights-", ckpt.CorruptFileError, Look.HEADER
        ),
        "another bit": Lie(
            lambda folder: _flip(folder, crc_follows=False), "storage of 'ints'", ckpt.CorruptChunkError, Look.CRC32
        ),
        "another bit and a CRC-32 that is right": Lie(
            lambda folder: _flip(folder, crc_follows=True), "storage of 'ints'", ckpt.CorruptChunkError, Look.SHA256
        ),
    }
)

ATTACHED: dict[str, Lie] = {
    f"{name} for an attachment": Lie(at("docs/a.txt", trick), "'docs/a.txt'", ckpt.CorruptFileError)
    for name, trick in TRICKS.items()
} | {
    "a link to the folder of an attachment": Lie(at("docs", _link), "'docs/a.txt'", ckpt.CorruptFileError),
    "an attachment with a byte more": Lie(at("docs/a.txt", _resized(1)), "'docs/a.txt'", ckpt.CorruptFileError),
    "another attachment of that size": Lie(
        lambda folder: shutil.copy(folder / "docs/b.txt", folder / "docs/a.txt"),
        "attachment 'docs/a.txt'",
        ckpt.CorruptChunkError,
    ),
}

DELTA_FOLDERS: dict[str, Lie] = (
    tricked("delta.pb", found_by=Look.MANIFEST)
    | {
        name: Lie(lie.tell, "patch-00001.bin", ckpt.CorruptFrameError, Look.SHA256)
        for name, lie in tricked("patch-00001.bin", found_by=Look.SHA256).items()
    }
    | {
        "a patch with a byte more": Lie(
            at("patch-00001.bin", _resized(1)), "the size of patch-00001.bin", ckpt.CorruptFrameError, Look.SHA256
        ),
    }
)
