"""Read the arrays of an ``.npz`` file, never its pickles, one at a time."""

import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from ckpt.conversion.archive import checked_archive
from ckpt.conversion.lazily import Lazy, blocks_of, write_lazily
from ckpt.disk.hashing import Progress
from ckpt.errors import FormatError
from ckpt.format.records import contiguous_strides
from ckpt.format.state import NUMPY_DTYPES, Kind, Node
from ckpt.saving.memory import BLOCK_BYTES

_SUFFIX = ".npy"
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[Any, ...]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def convert(path: Path, out: Path, progress: Progress | None, *, most_bytes: int) -> None:
    """Write a dict of the file's arrays as a checkpoint; they may unpack to ``most_bytes`` together."""
    with open(path, "rb") as file:
        methods = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
        archive, entries = checked_archive(file, path.name, methods=methods, most_bytes=most_bytes)
        lazies, nodes = [], [Node(kind=Kind.DICT, count=len(entries))]
        for entry in entries:
            lazy, dtype = _lazy(archive, entry)
            lazies.append(lazy)
            nodes += [
                Node(kind=Kind.STR, data=lazy.name.encode()),
                Node(kind=Kind.NDARRAY, name=lazy.name, data=dtype.encode()),
            ]
        write_lazily(out, state=tuple(nodes), tensors=lazies, progress=progress)


def _lazy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[Lazy, str]:
    where = f"'{entry.filename[:80]}'"
    if not entry.filename.endswith(_SUFFIX):
        raise FormatError(where, "a file of another kind", f"arrays, *{_SUFFIX}")
    with _opened(archive, entry) as stream:
        shape, by_column, dtype = _header(stream, where)
        start = stream.tell()
    if dtype.str not in NUMPY_DTYPES:
        raise FormatError(where, f"an array of dtype {dtype}", f"one of {', '.join(sorted(NUMPY_DTYPES))}")
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if start + size != entry.file_size:
        raise FormatError(where, f"{entry.file_size - start} bytes", f"{size} by its dtype and shape")
    strides = contiguous_strides(shape)
    if by_column and len(shape) > 1:
        strides = tuple(reversed(contiguous_strides(tuple(reversed(shape)))))
        blocks = blocks_of(where, lambda: _whole(archive, entry))
    else:
        blocks = lambda: _streamed(archive, entry, start)  # noqa: E731
    name = entry.filename.removesuffix(_SUFFIX)
    return Lazy(name=name, dtype=dtype.name, shape=shape, strides=strides, blocks=blocks), dtype.str


def _header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise FormatError(where, f"npy version {version}", f"one of {[*_HEADERS]}")
    shape, by_column, dtype = _HEADERS[version](stream)
    if any(size < 0 for size in shape):
        raise FormatError(where, f"shape {shape}", "sizes of 0 and more")
    return shape, by_column, dtype


def _whole(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> torch.Tensor:
    with _opened(archive, entry) as stream:
        return torch.from_numpy(np.lib.format.read_array(stream, allow_pickle=False))


def _streamed(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, start: int) -> Iterator[memoryview]:
    with _opened(archive, entry) as stream:
        stream.read(start)  # not sought: from Python 3.12 on zipfile compares no CRC-32 after that
        while block := stream.read(BLOCK_BYTES):  # as much unless it ends, where zipfile compares the CRC-32
            yield memoryview(block)


@contextmanager
def _opened(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    try:
        with archive.open(entry) as stream:
            yield stream
    except FormatError:
        raise
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, ValueError) as error:
        where = f"'{entry.filename[:80]}'"
        raise FormatError(where, f"what is no array ({str(error)[:200]})", "one that NumPy wrote") from None
