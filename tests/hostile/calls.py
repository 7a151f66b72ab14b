"""Every public call that may meet a file of some kind, and how far it looks.

Each takes the path of the file or folder that may lie; what it needs besides lies beside it.
"""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

import ckpt
from ckpt.conversion import dcp, npz, torch_file
from tests.ckpt.signers import NEW, OLD, READERS, trusting
from tests.hostile.lies import Look

Calls = dict[str, tuple[Look, Callable[[Path], object]]]


def beside(path: Path, name: str) -> Path:
    """A file of a folder, or of a file that was adopted by itself."""
    return path / name if path.is_dir() else path.with_name(f"{path.name}.{name}")


def save_beside(*makers: Callable[[Path], object]) -> Callable[[Path], None]:
    """Several things in one folder."""

    def make(folder: Path) -> None:
        for each in makers:
            each(folder)

    return make


def save_helpers(folder: Path) -> None:
    """Beside ``victim``: a ``good`` copy, ``bad``, one of them with a chunk that must be mended, and a ``delta``."""
    shutil.copytree(folder / "victim", folder / "good")
    damaged(folder / "victim", folder / "bad")
    ckpt.save({"ints": torch.arange(5)}, folder / "other")
    ckpt.diff(folder / "victim", folder / "other", folder / "delta")


def save_sound(folder: Path) -> None:
    """``bad``, with a chunk that must be mended."""
    ckpt.save({"a": torch.ones(2)}, folder / "sound")
    damaged(folder / "sound", folder / "bad")


def damaged(sound: Path, copy: Path) -> None:
    shutil.copytree(sound, copy)
    file = next(copy.glob("weights-*"))
    file.write_bytes(file.read_bytes()[:-1] + b"\x55")


def _touch_all(path: Path) -> None:
    with ckpt.open(path) as opened:
        for name in opened:
            opened[name]


def _attached(path: Path) -> None:
    with ckpt.open(path) as opened:
        opened.attachment("docs/a.txt")


def _load_into(path: Path) -> None:
    with contextlib.suppress(TypeError, RuntimeError):  # of a sound state that is no module's
        ckpt.load_into(torch.nn.Linear(1, 1), path)


def made(path: Path) -> Path:
    """Where a call may write."""
    return path.parent / "made"


READING: Calls = {
    "read_manifest": (Look.MANIFEST, ckpt.read_manifest),
    "inspect": (Look.MANIFEST, ckpt.inspect),
    "sign": (Look.MANIFEST, lambda path: ckpt.sign(path, OLD)),
    "unsign": (Look.MANIFEST, lambda path: ckpt.unsign(path, [OLD.public_key()])),
    "open, unverified": (Look.HEADER, lambda path: ckpt.open(path, verify="none")),
    "open": (Look.HEADER, ckpt.open),
    "open and touch": (Look.SHA256, _touch_all),
    "open, CRC-32": (Look.CRC32, lambda path: ckpt.open(path, verify="crc32")),
    "open, SHA-256": (Look.SHA256, lambda path: ckpt.open(path, verify="sha256")),
    "load, unverified": (Look.HEADER, lambda path: ckpt.load(path, verify="none")),
    "load, CRC-32": (Look.CRC32, ckpt.load),
    "load, lazy": (Look.SHA256, lambda path: ckpt.load(path, verify="lazy")),
    "load, SHA-256": (Look.SHA256, lambda path: ckpt.load(path, verify="sha256")),
    "load, unmapped": (Look.CRC32, lambda path: ckpt.load(path, mmap=False)),
    "load_into": (Look.CRC32, _load_into),
    "verify, CRC-32": (Look.CRC32, lambda path: ckpt.verify(path, verify="crc32").raise_on_fault()),
    "verify": (Look.SHA256, lambda path: ckpt.verify(path).raise_on_fault()),
}

CHECKPOINT: Calls = READING | {
    "repair": (Look.MANIFEST, lambda path: ckpt.repair(path, path.parent / "good")),
    "diff from it": (Look.HEADER, lambda path: ckpt.diff(path, path.parent / "other", made(path))),
    "diff to it": (Look.HEADER, lambda path: ckpt.diff(path.parent / "other", path, made(path))),
    "apply to it": (Look.HEADER, lambda path: ckpt.apply(path, path.parent / "delta", made(path))),
}

ATTACHMENT: Calls = {
    "open and ask": (Look.MANIFEST, _attached),
    "verify": (Look.MANIFEST, lambda path: ckpt.verify(path).raise_on_fault()),
}

ADOPTED: Calls = READING | {"adopt": (Look.MANIFEST, ckpt.adopt)}

HEADER: Calls = {
    "adopt": (Look.MANIFEST, ckpt.adopt),
    "adopt elsewhere": (Look.MANIFEST, lambda path: ckpt.adopt(path, out=made(path))),
    "repair from it": (Look.MANIFEST, lambda path: ckpt.repair(path.parent / "bad", path)),
}

INDEX: Calls = {name: HEADER[name] for name in ("adopt", "adopt elsewhere")}

SIGNATURES: Calls = {
    **{name: (Look.MANIFEST, lambda path, read=read: read(path, trusting(OLD))) for name, read in READERS.items()},
    "verify without trust": (Look.MANIFEST, lambda path: ckpt.verify(path).raise_on_fault()),
    "inspect": (Look.MANIFEST, ckpt.inspect),
    "sign": (Look.MANIFEST, lambda path: ckpt.sign(path, NEW)),
    "unsign": (Look.MANIFEST, lambda path: ckpt.unsign(path, [OLD.public_key()])),
}

DELTA: Calls = {
    "read_delta": (Look.MANIFEST, ckpt.read_delta),
    "sign": (Look.MANIFEST, lambda path: ckpt.sign(path, OLD)),
    "apply": (Look.SHA256, lambda path: ckpt.apply(path.parent / "old", path, made(path))),
    "invert": (Look.SHA256, lambda path: ckpt.invert(path, made(path), base=path.parent / "old")),
    "squash": (Look.SHA256, lambda path: ckpt.squash([path], made(path), base=path.parent / "old")),
    "squash without the base": (Look.MANIFEST, lambda path: ckpt.squash([path], made(path))),
}

# What the child process of ``ckpt.convert`` calls: a child for each lie would take minutes.
TORCH: Calls = {"convert": (Look.MANIFEST, lambda path: torch_file.convert(path, made(path), None))}
NPZ: Calls = {"convert": (Look.MANIFEST, lambda path: npz.convert(path, made(path), None, most_bytes=1 << 20))}
DCP: Calls = {"convert": (Look.MANIFEST, lambda path: dcp.convert(path, made(path), None))}


def _read(path: Path) -> object:
    if any((path / name).exists() for name in ("x.safetensors", "model.safetensors.index.json")):
        return ckpt.adopt(path)
    return (ckpt.read_delta if (path / "delta.pb").exists() else ckpt.read_manifest)(path)


BOMB: Calls = {"read": (Look.MANIFEST, _read)}
