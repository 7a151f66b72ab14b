"""The record of a live patch: a folder from which whoever comes after a kill applies or undoes it.

    patch/    a checkpoint: the manifests of base and target as bytes, and the writes
    state     one word and a line end: staged, applying, applied, undoing or undone

It appears whole, its bytes are proved by SHA-256 when it is read, and the word is replaced in one step. Nobody vouches
for it: believe it where nobody else may write. Byte by byte: ``docs/formats/delta.md``.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ckpt.deltas.live.writes import Write
from ckpt.disk.commit import place_file, staged, write_file
from ckpt.disk.folder import Folder, reading
from ckpt.errors import FormatError
from ckpt.format.manifest import Manifest
from ckpt.format.rules import check
from ckpt.format.wire import manifest_from_bytes, manifest_to_bytes
from ckpt.reading.reader import load
from ckpt.saving.writer import save

_PATCH, _STATE = "patch", "state"
_LONGEST_WORD = 16
_POSITIONS = (torch.int32, torch.int64)


class Kept(NamedTuple):
    """A write as it was kept; ``positions`` None where ``old`` and ``new`` are a run."""

    storage: int
    start: int
    positions: Tensor | None
    old: Tensor
    new: Tensor


class Record(NamedTuple):
    """What a folder holds."""

    base: Manifest
    target: Manifest
    writes: tuple[Kept, ...]
    word: str


def write_record(folder: Path | str, base: Manifest, target: Manifest, writes: Sequence[Write], word: str) -> None:
    """Write the record of a patch, durably.

    Raises:
        DestinationError: something stands there.
    """
    state = {
        "base": _bytes(base),
        "target": _bytes(target),
        "writes": [{name: getattr(each, name) for name in Kept._fields} for each in writes],
    }
    with staged(folder, overwrite=False, owns=lambda _: None) as staging:
        save(state, staging / _PATCH)
        write_file(staging / _STATE, _line(word))


def mark(folder: Path, word: str) -> None:
    """Replace the state word, durably."""
    place_file(folder / _STATE, _line(word), replace=True)


def read_record(path: Path | str, words: Sequence[str]) -> Record:
    """The record at a path, every byte proved, every rule checked that needs no memory.

    Raises:
        NotACheckpointError: there is none.
        FormatError: it breaks a rule.
        IntegrityError: bytes are not what was written.
    """
    word = reading(path, lambda folder: _word(folder, words), expected=_STATE)
    place = Path(path) / _PATCH
    state = load(place, verify="sha256", mmap=False)
    if not isinstance(state, dict) or list(state) != ["base", "target", "writes"]:
        raise FormatError(str(place), "another state", "that of a live patch")
    base, target = (_manifest(state[name], f"{place}: {name}") for name in ("base", "target"))
    if not isinstance(state["writes"], list):
        raise FormatError(f"{place}: writes", f"a {type(state['writes']).__name__}", "a list")
    writes = tuple(_kept(value, base, f"{place}: writes[{index}]") for index, value in enumerate(state["writes"]))
    return Record(base, target, writes, word)


def _line(word: str) -> bytes:
    return f"{word}\n".encode("ascii")


def _word(folder: Folder, words: Sequence[str]) -> str:
    data = folder.read(_STATE, at_most=_LONGEST_WORD)
    for word in words:
        if data == _line(word):
            return word
    raise FormatError(str(folder.path / _STATE), repr(data), f"one of {', '.join(words)}")


def _bytes(manifest: Manifest) -> Tensor:
    described = replace(manifest, files=(), placements=(), adopted=False)
    return torch.frombuffer(bytearray(manifest_to_bytes(described)), dtype=torch.uint8)


def _manifest(value: Any, where: str) -> Manifest:
    if not isinstance(value, Tensor) or value.dtype is not torch.uint8 or value.dim() != 1:
        raise FormatError(where, f"a {type(value).__name__}", "the bytes of a manifest")
    manifest = manifest_from_bytes(value.numpy().tobytes(), where)
    check(manifest, stored=False)
    return manifest


def _kept(value: Any, base: Manifest, where: str) -> Kept:
    if not isinstance(value, dict) or list(value) != list(Kept._fields):
        raise FormatError(where, "something else", f"{', '.join(Kept._fields)}")
    kept = Kept(**value)
    if type(kept.storage) is not int or type(kept.start) is not int or not 0 <= kept.storage < len(base.storages):
        raise FormatError(where, f"storage {kept.storage!r}, start {kept.start!r}", f"below {len(base.storages)}")
    for name, values in (("old", kept.old), ("new", kept.new), ("positions", kept.positions)):
        if values is None and name == "positions":
            continue
        if not isinstance(values, Tensor) or values.dim() != 1 or not values.numel():
            raise FormatError(f"{where}.{name}", f"a {type(values).__name__}", "elements in a row")
        if values.numel() != kept.old.numel():
            raise FormatError(f"{where}.{name}", f"{values.numel()} elements", f"{kept.old.numel()}")
    if kept.positions is not None and kept.positions.dtype not in _POSITIONS:
        raise FormatError(f"{where}.positions", f"{kept.positions.dtype}", "int32 or int64")
    return kept
