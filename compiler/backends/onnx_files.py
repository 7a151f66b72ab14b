"""A program as two files that any ONNX Runtime opens: ``model.onnx``, the graph, and ``constants.bin``, the weights.

``constants.bin`` is laid out as an arena: each constant at its offset, in row-major order, gaps of zeros. So other
weights of the same program change the ranges of some constants and leave ``model.onnx`` as it is. An update writes
those ranges alone, into a sibling that shares or copies the rest inside the kernel and is then renamed: whoever opens
``constants.bin`` finds the old weights or the new ones, whenever the writer is killed, and who has it open keeps the
old ones.

A new folder appears whole. Two writers of one folder take turns.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import torch
from torch import Tensor

from compiler import constants as arenas
from compiler.backends.onnx_graph import DATA_FILE
from compiler.errors import OtherFilesError
from compiler.specs import ConstantSpec

GRAPH_FILE: Final = "model.onnx"
_Range = tuple[ConstantSpec, int, memoryview]  # a constant, where its bytes start in the file, and they themselves
_DRAFT: Final = f".{DATA_FILE}.draft"  # one name: what a killed writer left is written over by the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a call wrote: names of constants whose bytes are others now, in order, and how many bytes that was."""

    constants: tuple[str, ...]
    size_bytes: int


def write_files(
    package: bytes, constants: Sequence[ConstantSpec], memory: Mapping[str, Tensor], folder: str | Path
) -> Written:
    """Write both files into a new folder, or new weights into one that holds them for the same graph.

    Args:
        package: What the target ``onnx`` of a program holds.
        constants: The program's.
        memory: As ``Program.evaluate`` filled it.
        folder: Missing, empty, or written by this function before.

    Raises:
        OtherFilesError: The folder holds something else, or another graph. Nothing was changed.
    """
    folder = Path(folder)
    if not folder.exists() or not any(folder.iterdir()):
        return _write_new(package, constants, memory, folder)
    graph = folder / GRAPH_FILE
    found = graph.read_bytes() if graph.is_file() else None
    if found != package:
        raise OtherFilesError(folder=folder, found="no graph" if found is None else "the graph of another program")
    return update_files(constants, memory, folder)


def update_files(
    constants: Sequence[ConstantSpec],
    memory: Mapping[str, Tensor],
    folder: str | Path,
    *,
    names: Collection[str] | None = None,
) -> Written:
    """Write the ranges of ``constants.bin`` whose bytes have changed.

    Args:
        constants: The program's.
        memory: As ``Program.evaluate`` filled it.
        folder: As ``write_files`` left it.
        names: What to compare, where it is known what may have changed (``Program.evaluate`` says it); None: all.

    Raises:
        OtherFilesError: ``constants.bin`` is missing, or of another size. Nothing was changed.
    """
    folder = Path(folder)
    with _alone(folder):
        _check_size(constants, folder)
        with (folder / DATA_FILE).open("rb") as old:
            changed = [
                (constant, start, content)
                for constant, start, content in _ranges(constants, memory)
                if (names is None or constant.name in names) and _read(old, start, len(content)) != bytes(content)
            ]
            if changed:
                _replace(old, changed, folder)
    return _written(changed)


def _replace(old: BinaryIO, changed: Sequence[_Range], folder: Path) -> None:
    with (folder / _DRAFT).open("wb") as draft:
        _copy(old, draft)
        _write_ranges(draft, changed)
    (folder / _DRAFT).rename(folder / DATA_FILE)
    _sync(folder)


def _write_new(
    package: bytes, constants: Sequence[ConstantSpec], memory: Mapping[str, Tensor], folder: Path
) -> Written:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.parent / f".{folder.name}-{secrets.token_hex(4)}"
    draft.mkdir()
    try:
        ranges = list(_ranges(constants, memory))
        with (draft / GRAPH_FILE).open("wb") as file:
            file.write(package)
            file.flush()
            os.fsync(file.fileno())
        with (draft / DATA_FILE).open("wb") as file:
            file.truncate(arenas.arena_bytes(constants))
            _write_ranges(file, ranges)
        draft.rename(folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return _written(ranges)


def _write_ranges(file: BinaryIO, ranges: Sequence[_Range]) -> None:
    for _, start, content in ranges:
        file.seek(start)
        file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _ranges(constants: Sequence[ConstantSpec], memory: Mapping[str, Tensor]) -> Iterator[_Range]:
    """Each constant that has bytes."""
    starts = arenas.offsets(constants)
    for constant in constants:
        if constant.size_bytes:
            flat = memory[constant.name].contiguous().reshape(-1).view(torch.uint8)
            yield constant, starts[constant.name], flat.numpy().data


def _written(ranges: Sequence[_Range]) -> Written:
    return Written(
        constants=tuple(constant.name for constant, _, _ in ranges),
        size_bytes=sum(len(content) for _, _, content in ranges),
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Until the end of the block no other process updates this folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _check_size(constants: Sequence[ConstantSpec], folder: Path) -> None:
    file, expected = folder / DATA_FILE, arenas.arena_bytes(constants)
    found = file.stat().st_size if file.is_file() else None
    if found != expected:
        raise OtherFilesError(
            folder=folder, found=f"no {DATA_FILE}" if found is None else f"{found} bytes of constants, not {expected}"
        )


def _read(file: BinaryIO, start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    """All of a file, inside the kernel: file systems that can (XFS, Btrfs) share the blocks and copy nothing."""
    size = os.fstat(source.fileno()).st_size
    done = 0
    while done < size:
        done += os.copy_file_range(source.fileno(), target.fileno(), size - done, done, done)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
