"""Read a folder that ``torch.distributed.checkpoint`` wrote, without its reader.

That one unpickles whatever ``.metadata`` says. Here an unpickler that knows the classes of that file alone reads it,
everything it states is checked, and tensors are put together from their pieces one at a time.
"""

import io
import os
import pathlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata

from ckpt.conversion.lazily import Lazy, blocks_of, write_lazily
from ckpt.conversion.torch_file import check_entries, load
from ckpt.disk.folder import open_regular
from ckpt.disk.hashing import Progress
from ckpt.errors import FormatError, UnsupportedStateError
from ckpt.format.boxes import Box
from ckpt.format.dtypes import bits, name_of
from ckpt.format.piece_rules import untiled
from ckpt.format.records import contiguous_strides
from ckpt.format.state import flatten

METADATA_NAME = ".metadata"
_MAX_METADATA_BYTES = 512 << 20
_MAX_PIECES = 4096  # of one tensor
_CLASSES = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        metadata.Metadata,
        metadata.TensorStorageMetadata,
        metadata.BytesStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.TensorProperties,
        metadata._MEM_FORMAT_ENCODING,
        metadata.MetadataIndex,
        metadata.StorageMeta,
        filesystem._StorageInfo,
    )
} | {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("pathlib", "PosixPath"): pathlib.PurePosixPath,
    ("pathlib._local", "PosixPath"): pathlib.PurePosixPath,
}


class _Unpickler(pickle.Unpickler):
    """Knows the classes of a ``.metadata`` file and torch's dtypes, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises FormatError for any other global, before it is looked up."""
        known = _CLASSES.get((module, name))
        dtype = getattr(torch, name, None) if module == "torch" and known is None else None
        if known is None and not isinstance(dtype, torch.dtype):
            raise FormatError(METADATA_NAME, f"a pickle that asks for '{module}.{name}'", "classes of DCP alone")
        return dtype if known is None else known


def convert(path: Path, out: Path, progress: Progress | None) -> None:
    """Write the state in a DCP folder as a checkpoint."""
    folder = _Folder(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    stated = folder.stated()
    values = {key: _value(folder, stated, key, item) for key, item in stated.state_dict_metadata.items()}
    standing_in = {id(value.meta): value for value in values.values() if isinstance(value, _Assembled)}
    flat = {key: value.meta if isinstance(value, _Assembled) else value for key, value in values.items()}
    nodes, tensors = flatten(_nested(flat, stated.planner_data))
    lazies = [_lazy(name, tensor, standing_in.get(id(tensor))) for name, tensor in tensors.items()]
    write_lazily(out, state=nodes, tensors=lazies, progress=progress)


def _lazy(name: str, tensor: torch.Tensor, assembled: "_Assembled | None") -> Lazy:
    dtype, shape = name_of(tensor.dtype), tuple(tensor.shape)
    if dtype is None or tensor.layout is not torch.strided:
        raise UnsupportedStateError(name, f"a {tensor.layout} tensor of dtype {tensor.dtype}", "store its parts")
    load = assembled.tensor if assembled is not None else tensor.contiguous
    return Lazy(name=name, dtype=dtype, shape=shape, strides=contiguous_strides(shape), blocks=blocks_of(name, load))


def _nested(flat: dict[str, object], paths: object) -> object:
    """The state whose values DCP wrote under flat keys: text goes into dicts, numbers into lists.

    Whole numbers that were keys of a dict have become text when DCP wrote them.
    """
    if paths is None:
        return flat
    if not isinstance(paths, dict) or paths.keys() != flat.keys():
        raise _wrong("a planner's paths", "a path for each key")
    root: dict[object, object] = {}
    for key, value in flat.items():
        path, inner = paths[key], root
        if not isinstance(path, tuple) or not path or not all(type(part) in (str, int) for part in path):
            raise _wrong(f"the path of '{key[:80]}'", "keys and numbers")
        for part in path[:-1]:
            step = inner.setdefault(part, _Branch())
            if not isinstance(step, _Branch):
                raise _wrong(f"the path of '{key[:80]}', which goes through a value", "values at the ends alone")
            inner = step
        if path[-1] in inner:
            raise _wrong(f"the path of '{key[:80]}'", "each path once")
        inner[path[-1]] = value
    return _with_lists(root)


class _Branch(dict[object, object]):
    """A dict or list in the making; no value is one."""


def _with_lists(branch: dict[object, object]) -> object:
    items = {key: _with_lists(value) if isinstance(value, _Branch) else value for key, value in branch.items()}
    if not any(isinstance(key, int) for key in items):
        return items
    if items.keys() != set(range(len(items))):
        raise _wrong("a list with gaps", "numbers from 0 on")
    return [items[index] for index in range(len(items))]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A box of a tensor and the bytes that hold it, in ``torch.save``'s form."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: "_Place"


@dataclass(frozen=True, slots=True, eq=False)
class _Assembled:
    """A tensor in pieces; ``meta`` stands for it until it is written."""

    meta: torch.Tensor
    pieces: tuple[_Piece, ...]

    def tensor(self) -> torch.Tensor:
        whole = torch.empty(self.meta.shape, dtype=self.meta.dtype)
        for piece in self.pieces:
            part = piece.place.load()
            if type(part) is not torch.Tensor or (part.dtype, tuple(part.shape)) != (whole.dtype, piece.sizes):
                raise _wrong("a piece of another kind", f"{whole.dtype} of sizes {piece.sizes}")
            box = tuple(slice(start, start + size) for start, size in zip(piece.offsets, piece.sizes, strict=True))
            bits(whole)[box] = bits(part)
        return whole


def _value(folder: "_Folder", stated: metadata.Metadata, key: str, item: object) -> object:
    if isinstance(item, metadata.BytesStorageMetadata):
        return folder.place(stated, key, None).load()
    if not isinstance(item, metadata.TensorStorageMetadata) or not isinstance(item.chunks, list):
        raise _wrong(f"a {type(item).__name__} for '{key[:80]}'", "a tensor or bytes")
    shape, dtype = _sizes(item.size), item.properties.dtype
    pieces = tuple(
        _Piece(_sizes(chunk.offsets), _sizes(chunk.sizes), folder.place(stated, key, chunk.offsets))
        for chunk in item.chunks[: _MAX_PIECES + 1]
    )
    _check_pieces(key, shape, dtype.itemsize, pieces)
    return _Assembled(torch.empty(shape, dtype=dtype, device="meta"), pieces)


def _check_pieces(key: str, shape: tuple[int, ...], item_bytes: int, pieces: Sequence[_Piece]) -> None:
    """The pieces tile the tensor, and their files are large enough to hold it: checked before memory is taken."""
    full = [piece for piece in pieces if 0 not in piece.sizes]
    inside = len(pieces) <= _MAX_PIECES and all(
        len(piece.offsets) == len(piece.sizes) == len(shape)
        and all(start + size <= whole for start, size, whole in zip(piece.offsets, piece.sizes, shape, strict=True))
        for piece in pieces
    )
    boxes = [Box(piece.offsets, piece.sizes) for piece in full]
    fault = untiled(shape, boxes) if inside else "more of them, or one that is not inside"
    if fault is not None:
        raise _wrong(f"pieces of '{key[:80]}' with {fault}", f"at most {_MAX_PIECES} that tile {shape}")
    if prod(shape) * item_bytes > sum(piece.place.length for piece in full):
        raise _wrong(f"pieces of '{key[:80]}' in fewer bytes", f"{prod(shape) * item_bytes} at least")


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, torch.Size) or any(size < 0 for size in value):
        raise _wrong(f"a {type(value).__name__}", "a torch.Size")
    return tuple(value)


@dataclass(frozen=True, slots=True)
class _Place:
    """A run of bytes of a data file."""

    descriptor: int
    offset: int
    length: int

    def load(self) -> object:
        data = io.BytesIO(os.pread(self.descriptor, self.length, self.offset))
        check_entries(data, "a piece", size_bytes=self.length)
        data.seek(0)
        return load(data)


@dataclass(frozen=True, slots=True)
class _Folder:
    """The files of a DCP folder; the process that converts it ends soon and closes them."""

    path: Path
    descriptor: int
    files: dict[str, int] = field(default_factory=dict)

    def stated(self) -> metadata.Metadata:
        with open(open_regular(METADATA_NAME, self.descriptor, self.path), "rb") as file:
            data = file.read(_MAX_METADATA_BYTES + 1)
        if len(data) > _MAX_METADATA_BYTES:
            raise _wrong(f"more than {_MAX_METADATA_BYTES} bytes", "at most as many")
        found: metadata.Metadata = _Unpickler(io.BytesIO(data)).load()
        kinds = (found.state_dict_metadata, found.storage_data) if isinstance(found, metadata.Metadata) else (None,)
        if not all(isinstance(kind, dict) for kind in kinds) or not all(map(_is_text, kinds[0])):
            raise _wrong(f"a pickle of a {type(found).__name__}", "DCP's Metadata, with dicts in it")
        return found

    def place(self, stated: metadata.Metadata, key: str, offsets: torch.Size | None) -> _Place:
        """Where an item lies, within its file."""
        info = stated.storage_data.get(metadata.MetadataIndex(key, offsets))
        if not isinstance(info, filesystem._StorageInfo) or getattr(info, "transform_descriptors", None):
            raise _wrong(f"no plain place for '{key[:80]}'", "a file, an offset and a length, not transformed")
        name, offset, length = info.relative_path, info.offset, info.length
        if not _is_text(name) or name == ".." or PurePosixPath(name).parts != (name,):
            raise _wrong(f"the path {name!r:.80}", "a file in the folder")
        if name not in self.files:
            self.files[name] = open_regular(name, self.descriptor, self.path)
        size = os.fstat(self.files[name]).st_size
        if type(offset) is not int or type(length) is not int or not 0 <= offset <= offset + length <= size:
            raise _wrong(f"bytes {offset!r:.20} and {length!r:.20} more of '{name}'", f"within its {size} bytes")
        return _Place(self.files[name], offset, length)


def _is_text(value: object) -> bool:
    return type(value) is str


def _wrong(found: str, expected: str) -> FormatError:
    return FormatError(METADATA_NAME, found, expected)
