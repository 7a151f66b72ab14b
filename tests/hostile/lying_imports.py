"""Files of other formats that lie: ``torch.save`` files, ``.npz`` files, folders of DCP."""

import os
import pickle
import zipfile
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ckpt
from tests.ckpt.foreign_files import dcp_metadata, saved, write_metadata
from tests.hostile.lies import Lie

Change = Callable[[zipfile.ZipFile, zipfile.ZipFile], object]


def repacked(change: Change) -> Callable[[Path], None]:
    """Write an archive anew."""

    def tell(path: Path) -> None:
        old = path.rename(path.with_suffix(".old"))
        with zipfile.ZipFile(old) as source, zipfile.ZipFile(path, "w") as target:
            change(source, target)
        old.unlink()

    return tell


def pickled(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Write a ``torch.save`` file anew, with another pickle in it."""

    def write(source: zipfile.ZipFile, target: zipfile.ZipFile) -> None:
        for entry in source.infolist():
            data = source.read(entry)
            target.writestr(entry.filename, change(data) if entry.filename.endswith("data.pkl") else data)

    return repacked(write)


def _deflated(source: zipfile.ZipFile, target: zipfile.ZipFile) -> None:
    for entry in source.infolist():
        target.writestr(entry.filename, source.read(entry), zipfile.ZIP_DEFLATED)


def _overlapping(source: zipfile.ZipFile, target: zipfile.ZipFile) -> None:
    """Many names for the same bytes: what a directory of megabytes can make of a small file."""
    for entry in source.infolist():
        target.writestr(entry.filename, source.read(entry))
    first = target.infolist()[0]
    for number in range(4000):
        other = zipfile.ZipInfo(f"archive/data/{number + 100}")
        other.header_offset, other.CRC = first.header_offset, first.CRC
        other.file_size = other.compress_size = 10**9
        target.filelist.append(other)


def _doubled(source: zipfile.ZipFile, target: zipfile.ZipFile) -> None:
    for entry in source.infolist():
        target.writestr(entry.filename, source.read(entry))
    target.filelist.append(copy(target.filelist[0]))


TORCH: dict[str, Lie] = {
    "an empty one": Lie(
        lambda path: path.write_bytes(b""), "found what torch cannot read (EOFError: ), expected a torch file"
    ),
    "a truncated one": Lie(
        lambda path: os.truncate(path, path.stat().st_size // 2), "expected one with its directory at the end"
    ),
    "its first bytes": Lie(lambda path: os.truncate(path, 4), "expected one with its directory at the end"),
    "one of zeros": Lie(lambda path: path.write_bytes(bytes(1000)), "expected a torch file"),
    "a text": Lie(lambda path: path.write_text("hello"), "expected a torch file"),
    "a compressed one": Lie(repacked(_deflated), "found a compressed or encrypted entry, expected a plain one"),
    "one of entries without end": Lie(repacked(_overlapping), "expected at most 256067"),
    "one with a name twice": Lie(repacked(_doubled), "found 8 entries, expected at most 1048576, each name once"),
    "a tensor beyond its storage": Lie(
        pickled(lambda data: data.replace(b"K\x00M\xe8\x03\x85", b"K\x00M\xe9\x03\x85")), "expected a torch file"
    ),
    "a tensor that begins beyond its storage": Lie(
        pickled(lambda data: data.replace(b"K\x00M\xe8\x03\x85", b"M\xff\xffM\xe8\x03\x85")), "expected a torch file"
    ),
    "a tensor of 2^62 elements": Lie(
        pickled(
            lambda data: data.replace(
                b"K\x00M\xe8\x03\x85", b"K\x00\x8a\x08" + (1 << 62).to_bytes(8, "little") + b"\x85"
            )
        ),
        "expected a torch file",
    ),
    "a storage that is not there": Lie(
        pickled(lambda data: data.replace(b"X\x01\x00\x00\x000q", b"X\x01\x00\x00\x009q")), "expected a torch file"
    ),
    "a list that holds itself": Lie(
        pickled(lambda _: b"\x80\x02]q\x00h\x00a."),
        "is nested deeper than 64 levels",
        ckpt.UnsupportedStateError,
    ),
    "a dict that holds itself": Lie(
        pickled(lambda _: b"\x80\x02}q\x00K\x01h\x00s."),
        "is nested deeper than 64 levels",
        ckpt.UnsupportedStateError,
    ),
    "lists in lists": Lie(
        pickled(lambda _: b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b"."),
        "is nested deeper than 64 levels",
        ckpt.UnsupportedStateError,
    ),
    "one without a pickle": Lie(
        repacked(lambda _, target: target.writestr("archive/version", "3")), "expected a torch file"
    ),
}


# --- npz ------------------------------------------------------------------------------------------------------------


def _with_entry(data: bytes, name: str = "x.npy") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, data)

    return write


def _npy(shape: str, size: int, descr: str = "<f4") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(size)


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)


def _understated(path: Path) -> None:
    """A stream of a mebibyte in an entry that states the size of its array: 36 bytes after a header."""
    stated = len(_npy("(9,)", 36))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", _npy("(9,)", 1 << 20))
        archive.infolist()[0].file_size = stated


def _twice(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.filelist.append(copy(archive.filelist[0]))
        archive._didModify = True  # type: ignore[attr-defined]


def _encrypted(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.infolist()[0].flag_bits |= 1
        archive._didModify = True  # type: ignore[attr-defined]


NPZ: dict[str, Lie] = {
    "a truncated one": Lie(
        lambda path: os.truncate(path, path.stat().st_size // 2), "expected one with its directory at the end"
    ),
    "a flipped bit": Lie(_flipped, "expected one that NumPy wrote"),
    "more than it may unpack to": Lie(
        lambda path: np.savez_compressed(path, x=np.zeros(1 << 20)), "expected at most 1048576"
    ),
    "more than an entry states": Lie(_understated, "expected one that NumPy wrote"),
    "a name twice": Lie(_twice, "found 2 entries, expected at most 1048576, each name once"),
    "an encrypted array": Lie(_encrypted, "found a compressed or encrypted entry, expected a plain one"),
    "another file in it": Lie(_with_entry(b"x", "x.txt"), "found a file of another kind, expected arrays, *.npy"),
    "an array without a header": Lie(_with_entry(b"x"), "expected one that NumPy wrote"),
    "a header of another version": Lie(
        _with_entry(b"\x93NUMPY\7\0" + bytes(90)), "found npy version (7, 0), expected one of [(1, 0), (2, 0)]"
    ),
    "a header that is code": Lie(
        _with_entry(_npy("(__import__('os').mkdir('marker'),)", 4)), "expected one that NumPy wrote"
    ),
    "fewer bytes than its shape": Lie(
        _with_entry(_npy("(9,)", 35)), "found 35 bytes, expected 36 by its dtype and shape"
    ),
    "more bytes than its shape": Lie(
        _with_entry(_npy("(9,)", 37)), "found 37 bytes, expected 36 by its dtype and shape"
    ),
    "a negative shape": Lie(_with_entry(_npy("(-1, -9)", 36)), "found shape (-1, -9), expected sizes of 0 and more"),
    "a shape that overflows": Lie(
        _with_entry(_npy("(4294967296, 4294967296)", 0)), "expected 73786976294838206464 by its dtype and shape"
    ),
    "bytes the other way round": Lie(_with_entry(_npy("(9,)", 36, ">f4")), "found an array of dtype >f4"),
    "fields": Lie(_with_entry(_npy("(9,)", 36, "|V4")), "found an array of dtype |V4"),
}


# --- torch.distributed.checkpoint -----------------------------------------------------------------------------------


def place(stated: Any, key: str) -> Any:
    return next(info for index, info in stated.storage_data.items() if index.fqn == key)


def tensor(stated: Any) -> Any:
    return stated.state_dict_metadata["w"]


def put(item: Any, **attributes: object) -> None:
    item.__dict__.update(attributes)


DCP: dict[str, Lie] = {
    "a path upwards": Lie(
        lambda m: put(place(m, "n"), relative_path="../secret"),
        "found the path '../secret', expected a file in the folder",
    ),
    "an absolute path": Lie(
        lambda m: put(place(m, "n"), relative_path="/etc/passwd"),
        "found the path '/etc/passwd', expected a file in the folder",
    ),
    "the folder above": Lie(
        lambda m: put(place(m, "n"), relative_path=".."), "found the path '..', expected a file in the folder"
    ),
    "a path that is no text": Lie(
        lambda m: put(place(m, "n"), relative_path=7), "found the path 7, expected a file in the folder"
    ),
    "bytes beyond its file": Lie(lambda m: put(place(m, "n"), offset=10**9), "expected within its 4479 bytes"),
    "a negative offset": Lie(lambda m: put(place(m, "n"), offset=-1), "expected within its 4479 bytes"),
    "an endless length": Lie(lambda m: put(place(m, "n"), length=2**62), "expected within its 4479 bytes"),
    "an offset that is no number": Lie(lambda m: put(place(m, "n"), offset="0"), "expected within its 4479 bytes"),
    "a transformed item": Lie(
        lambda m: put(place(m, "n"), transform_descriptors=["zstd"]),
        "expected a file, an offset and a length, not transformed",
    ),
    "no place": Lie(lambda m: m.storage_data.clear(), "expected a file, an offset and a length, not transformed"),
    "a gap": Lie(lambda m: tensor(m).chunks.pop(), "expected at most 4096 that tile (4, 6)"),
    "an overlap": Lie(
        lambda m: put(tensor(m).chunks[1], offsets=torch.Size([0, 0])), "expected at most 4096 that tile (4, 6)"
    ),
    "a piece twice": Lie(
        lambda m: tensor(m).chunks.append(tensor(m).chunks[0]), "expected at most 4096 that tile (4, 6)"
    ),
    "a piece outside": Lie(lambda m: put(tensor(m), size=torch.Size([4, 5])), "expected at most 4096 that tile (4, 5)"),
    "pieces of other dimensions": Lie(
        lambda m: put(tensor(m), size=torch.Size([24])), "expected at most 4096 that tile (24,)"
    ),
    "another dtype": Lie(
        lambda m: put(tensor(m).properties, dtype=torch.float64), "expected torch.float64 of sizes (4, 4)"
    ),
    "another dtype of that size": Lie(
        lambda m: put(tensor(m).properties, dtype=torch.int32), "expected torch.int32 of sizes (4, 4)"
    ),
    "a shape beyond its bytes": Lie(
        lambda m: put(
            tensor(m),
            size=torch.Size([2**40]),
            chunks=[type(tensor(m).chunks[0])(torch.Size([0]), torch.Size([2**40]))],
        ),
        "expected a file, an offset and a length, not transformed",
    ),
    "a size that is no size": Lie(lambda m: put(tensor(m), size=[4, 6]), "found a list, expected a torch.Size"),
    "chunks that are no list": Lie(lambda m: put(tensor(m), chunks=torch.Size([1])), "expected a tensor or bytes"),
    "an item of another kind": Lie(
        lambda m: m.state_dict_metadata.update(w=torch.Size([1])), "found a Size for 'w', expected a tensor or bytes"
    ),
    "keys that are no text": Lie(
        lambda m: m.state_dict_metadata.update({7: m.state_dict_metadata["n"]}),
        "expected DCP's Metadata, with dicts in it",
    ),
    "no dict of items": Lie(
        lambda m: put(m, state_dict_metadata=torch.Size([1])), "expected DCP's Metadata, with dicts in it"
    ),
    "no dict of places": Lie(lambda m: put(m, storage_data=None), "expected DCP's Metadata, with dicts in it"),
    "a path for fewer keys": Lie(
        lambda m: m.planner_data.pop("n"), "found a planner's paths, expected a path for each key"
    ),
    "paths that are no dict": Lie(
        lambda m: put(m, planner_data=torch.Size([])), "found a planner's paths, expected a path for each key"
    ),
    "an empty path": Lie(lambda m: m.planner_data.update(n=()), "found the path of 'n', expected keys and numbers"),
    "a path of lists": Lie(
        lambda m: m.planner_data.update(n=([],)), "found the path of 'n', expected keys and numbers"
    ),
    "two values at one path": Lie(
        lambda m: m.planner_data.update(n=("model", "w")), "found the path of 'n', expected each path once"
    ),
    "a path through a value": Lie(
        lambda m: m.planner_data.update(n=("model", "w", "n")), "expected values at the ends alone"
    ),
    "a list with a gap": Lie(
        lambda m: m.planner_data.update(n=("counts", 10**12)), "found a list with gaps, expected numbers from 0 on"
    ),
    "a list with text in it": Lie(
        lambda m: m.planner_data.update(n=("model", 0)), "found a list with gaps, expected numbers from 0 on"
    ),
}


def save_torch(folder: Path) -> None:
    torch.save({"w": torch.ones(1000)}, folder / "x.pt")


def save_npz(folder: Path) -> None:
    np.savez(folder / "x.npz", x=np.arange(900))


def save_dcp(folder: Path) -> None:
    """``x``, and beside it a file that no path in it may reach."""
    write_metadata(folder / "x", dcp_metadata(folder / "x"))
    (folder / "secret").write_bytes(saved(1))


def restated(edit: Callable[[Any], object]) -> Callable[[Path], None]:
    """Write the metadata of a DCP folder anew."""

    def tell(folder: Path) -> None:
        stated = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301  (our own, of a moment ago)
        edit(stated)
        write_metadata(folder, stated)

    return tell
