"""Safetensors headers, indexes and the manifests of adopted files that lie."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file

import ckpt
from ckpt.format.adopted_header import MAX_HEADER_BYTES
from tests.ckpt.safetensors_files import entry, file_bytes, weights
from tests.hostile.edits import put, storage, tensor
from tests.hostile.lies import Lie, Look

A, B = entry("F32", [2], 0, 8), entry("U8", [3], 8, 11)
PAYLOAD = bytes(range(11))


def text(**entries: object) -> str:
    return json.dumps({"a": A, "b": B} | entries)


def lone(**changes: object) -> str:
    """``a`` with other fields, before ``b``."""
    return text(a=A | changes)


def header(header: str | bytes) -> Callable[[Path], object]:
    """Write the file with another header before the same payload."""
    return lambda file: file.write_bytes(file_bytes(header, PAYLOAD))


def length(stated: int, *, file_bytes: int = 0) -> Callable[[Path], object]:
    """Write the file with another length of its header, and make it longer by a hole."""

    def tell(file: Path) -> None:
        file.write_bytes(stated.to_bytes(8, "little") + text().encode())
        if file_bytes:
            os.truncate(file, file_bytes)

    return tell


def save_plain(folder: Path) -> None:
    """``x.safetensors``: what the lies about headers are made of."""
    (folder / "x.safetensors").write_bytes(file_bytes(text(__metadata__={"k": "v"}) + "   ", PAYLOAD))


HEADERS: dict[str, Lie] = {
    "a file of nothing": Lie(lambda file: os.truncate(file, 0), "a header of 0 bytes in a file of 0"),
    "half a length": Lie(lambda file: os.truncate(file, 7), "in a file of 7"),
    "a length of nothing": Lie(length(0), "expected one JSON object"),
    "a length beyond the file": Lie(length(10**6), "a header of 1000000 bytes in a file of"),
    "a length beyond the limit": Lie(
        length(MAX_HEADER_BYTES + 1, file_bytes=2 * MAX_HEADER_BYTES), "at most 100000000"
    ),
    "a length of 2^63": Lie(length(2**63), "a header of 9223372036854775808 bytes"),
    "a length of 2^64 - 1": Lie(length(2**64 - 1), "a header of 18446744073709551615 bytes"),
    "bytes after the payload": Lie(
        lambda file: os.truncate(file, file.stat().st_size + 1), "where its last tensor ends"
    ),
    "a payload cut short": Lie(lambda file: os.truncate(file, file.stat().st_size - 1), "where its last tensor ends"),
    "a hole of a terabyte after it": Lie(lambda file: os.truncate(file, 1 << 40), "where its last tensor ends"),
    "no JSON": Lie(header("x"), "expected one JSON object"),
    "no object": Lie(header("[1]"), "found text that begins with b'[1]', expected one JSON object"),
    "nothing": Lie(header(""), "expected one JSON object"),
    "spaces first": Lie(header(" " + text()), "expected one JSON object"),
    "text after it": Lie(header(text() + "x"), "expected one JSON object"),
    "NULs after it": Lie(header(text() + "\0\0"), "expected one JSON object"),
    "no UTF-8": Lie(header(text().encode().replace(b'"a"', b'"\xff"')), "expected one JSON object"),
    "a lone surrogate": Lie(
        header(text().replace('"a"', '"\\ud800"')), "found a lone surrogate in a name, expected UTF-8"
    ),
    "an endless number": Lie(
        header(lone(data_offsets=[0, 8]).replace("8]", "8" * 5000 + "]", 1)), "expected one JSON object"
    ),
    "lists in lists": Lie(header('{"a": ' + "[" * 100_000), "recursion"),
    "a name twice": Lie(header(text().replace('"b"', '"a"')), "a key stands twice"),
    "a field twice": Lie(
        header(text().replace('"dtype": "F32"', '"dtype": "F32", "dtype": "F32"')), "a key stands twice"
    ),
    "metadata twice": Lie(header('{"__metadata__": {}, "__metadata__": {}, ' + text()[1:]), "a key stands twice"),
    "metadata that is no object": Lie(header(text(__metadata__=[])), "found something else, expected text by key"),
    "metadata that is no text": Lie(header(text(__metadata__={"k": 1})), "found something else, expected text by key"),
    "a tensor that is no object": Lie(
        header(text(a=[0, 8])), "found other fields, expected data_offsets, dtype, shape"
    ),
    "a field too many": Lie(header(lone(strides=[1])), "found other fields, expected data_offsets, dtype, shape"),
    "a field too few": Lie(
        header(text(a={"dtype": "F32", "shape": [2]})), "found other fields, expected data_offsets, dtype, shape"
    ),
    "an unknown dtype": Lie(header(lone(dtype="F128")), "found dtype 'F128'"),
    "a dtype that torch lacks": Lie(header(lone(dtype="F6_E2M3")), "found dtype 'F6_E2M3'"),
    "a dtype that is no text": Lie(header(lone(dtype=["F32"])), "found dtype \"['F32']\""),
    "a dtype of another size": Lie(header(lone(dtype="F64")), "found 8 bytes, expected 16 by its dtype and shape"),
    "a shape that is no list": Lie(header(lone(shape=2)), "found 2, expected a list of whole numbers below 2^63"),
    "a shape of text": Lie(header(lone(shape=["2"])), "found ['2'], expected a list of whole numbers below 2^63"),
    "a shape of floats": Lie(header(lone(shape=[2.0])), "found [2.0], expected a list of whole numbers below 2^63"),
    "a shape of bools": Lie(
        header(lone(shape=[True, 2])), "found [True, 2], expected a list of whole numbers below 2^63"
    ),
    "a negative size": Lie(header(lone(shape=[-2])), "found [-2], expected a list of whole numbers below 2^63"),
    "two negative sizes": Lie(
        header(lone(shape=[-1, -2])), "found [-1, -2], expected a list of whole numbers below 2^63"
    ),
    "sizes that overflow": Lie(
        header(lone(shape=[2**32, 2**32, 2])), "expected 147573952589676412928 by its dtype and shape"
    ),
    "a size of 2^64": Lie(header(lone(shape=[2**64])), "expected a list of whole numbers below 2^63"),
    "nothing of a huge size": Lie(header(lone(shape=[0, 2**63])), "expected a list of whole numbers below 2^63"),
    "too many sizes": Lie(header(lone(shape=[1] * 64 + [2])), "expected 4 KiB, 64 sizes and two offsets at most"),
    "an offset of minus zero": Lie(
        header(lone(data_offsets=[0, 8]).replace("[0, 8]", "[-0, 8]")), "-0, which is no whole number"
    ),
    "one offset": Lie(header(lone(data_offsets=[0])), "expected 4 KiB, 64 sizes and two offsets at most"),
    "three offsets": Lie(header(lone(data_offsets=[0, 8, 8])), "expected 4 KiB, 64 sizes and two offsets at most"),
    "a negative offset": Lie(
        header(lone(data_offsets=[-8, 0])), "found [-8, 0], expected a list of whole numbers below 2^63"
    ),
    "offsets the wrong way": Lie(
        header(lone(data_offsets=[8, 0])), "found -8 bytes, expected 8 by its dtype and shape"
    ),
    "offsets that overlap": Lie(
        header(text(b=B | {"data_offsets": [4, 7]})), "expected tensors end to end in the payload"
    ),
    "two tensors on the same bytes": Lie(header(text(b=A)), "expected tensors end to end in the payload"),
    "a hole": Lie(
        header(text(b=B | {"shape": [2], "data_offsets": [9, 11]})), "expected tensors end to end in the payload"
    ),
    "a hole at the start": Lie(
        header(text(a=A | {"shape": [1], "data_offsets": [4, 8]})), "expected tensors end to end in the payload"
    ),
    "bytes after the last one": Lie(
        header(text(b=B | {"shape": [2], "data_offsets": [8, 10]})), "expected 140, where its last tensor ends"
    ),
    "a last one beyond the file": Lie(
        header(text(b=B | {"shape": [4], "data_offsets": [8, 12]})), "expected 142, where its last tensor ends"
    ),
    "an endless name": Lie(
        header(text(**{"n" * 5000: entry("U8", [0], 11, 11)})), "expected 4 KiB, 64 sizes and two offsets at most"
    ),
    "half a byte": Lie(header(text(b=entry("F4", [5], 8, 11))), "expected rows of whole bytes (2 a byte)"),
    "a half byte alone": Lie(header(text(b=entry("F4", [], 8, 11))), "expected rows of whole bytes (2 a byte)"),
}


# --- manifests of adopted files -------------------------------------------------------------------------------------


def save_adopted(folder: Path) -> None:
    """``x.safetensors`` with its manifest beside it."""
    save_file(weights(), folder / "x.safetensors")
    ckpt.adopt(folder / "x.safetensors")


ADOPTED: dict[str, Lie] = {
    "a path": Lie(lambda m: put(m.files[0], name="../x.safetensors"), "expected one in the folder, *.safetensors"),
    "a name of another kind": Lie(lambda m: put(m.files[0], name="x.bin"), "expected one in the folder, *.safetensors"),
    "no file": Lie(lambda m: put(m, files=[]), "expected one, or several and model.safetensors.index.json"),
    "a second file without an index": Lie(
        lambda m: m.files.add(name="y.safetensors", header_sha256=bytes(32)),
        "expected one, or several and model.safetensors.index.json",
    ),
    "an index beside a lone file": Lie(
        lambda m: m.files.add(name="model.safetensors.index.json", header_sha256=bytes(32)),
        "found other files, expected 'x.safetensors' alone",
    ),
    "files that it wrote itself": Lie(
        lambda m: put(m, adopted=False), "expected weights-…, extra-… or model.safetensors.index.json"
    ),
    "a transposed tensor": Lie(lambda m: put(tensor(m, "embed.weight"), strides=[1, 700]), "expected one plain tensor"),
    "a tensor at an offset": Lie(
        lambda m: put(tensor(m, "layer.0.bias"), shape=[32], offset=4), "expected those alone"
    ),
    "a dtype that no header names": Lie(lambda m: put(tensor(m, "steps"), dtype="bits8"), "expected one plain tensor"),
    "another dtype of that size": Lie(
        lambda m: put(tensor(m, "steps"), dtype="uint8"),
        "expected those of the manifest",
        ckpt.CorruptFileError,
        found_by=Look.HEADER,
    ),
    "another shape of that size": Lie(
        lambda m: put(tensor(m, "embed.weight"), shape=[512, 700], strides=[700, 1]),
        "expected those of the manifest",
        ckpt.CorruptFileError,
        found_by=Look.HEADER,
    ),
    "a storage somewhere else": Lie(
        lambda m: put(storage(m, "steps"), offset=storage(m, "steps").offset + 1),
        "of file 0, expected storages end to end",
    ),
    "a storage in a file that is not there": Lie(
        lambda m: put(storage(m, "steps"), file=1), "of file 1, expected storages end to end"
    ),
    "a header of another length": Lie(
        lambda m: put(m.files[0], header_size=m.files[0].header_size - 8),
        "of file 0, expected storages end to end",
    ),
    "an attachment": Lie(
        lambda m: m.attachments.add(path="y.txt"), "found other files, expected 'x.safetensors' alone"
    ),
}


# --- indexes --------------------------------------------------------------------------------------------------------


def index(stated: object) -> Callable[[Path], object]:
    """Write the index of a folder."""
    text = stated if isinstance(stated, str) else json.dumps(stated)
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


def save_indexed(folder: Path) -> None:
    """``x``: a folder of three files and an index of two of them."""
    folder = folder / "x"
    folder.mkdir()
    save_file(weights(), folder / "x.safetensors")
    save_file({"other": weights()["scale"]}, folder / "y.safetensors")
    save_file({"other": weights()["scale"], "scale": weights()["scale"]}, folder / "twice.safetensors")
    files = dict.fromkeys(weights(), "x.safetensors") | {"other": "y.safetensors"}
    index({"weight_map": files})(folder)


def _no_file(folder: Path) -> None:
    (folder / "y.safetensors").unlink()


def _fifo(folder: Path) -> None:
    _no_file(folder)
    os.mkfifo(folder / "y.safetensors")


INDEXES: dict[str, Lie] = {
    "no JSON": Lie(index("x"), "expected one JSON object"),
    "no object": Lie(index([]), "found text that begins with b'[]', expected one JSON object"),
    "no weight map": Lie(index({"metadata": {}}), "found no weight_map, expected one, of tensor names to file names"),
    "a weight map of numbers": Lie(
        index({"weight_map": {"scale": 1}}), "found no weight_map, expected one, of tensor names to file names"
    ),
    "a path upwards": Lie(
        index({"weight_map": {"scale": "../x.safetensors"}}), "expected one in the folder, *.safetensors"
    ),
    "an absolute path": Lie(
        index({"weight_map": {"scale": "/etc/x.safetensors"}}), "expected one in the folder, *.safetensors"
    ),
    "another kind of file": Lie(index({"weight_map": {"scale": "x.bin"}}), "expected one in the folder, *.safetensors"),
    "a name that no file has": Lie(
        index({"weight_map": dict.fromkeys([*weights(), "more"], "x.safetensors")}),
        "expected it in no file, as the headers have it",
    ),
    "a name too few": Lie(
        index({"weight_map": dict.fromkeys([*weights()][1:], "x.safetensors")}),
        "expected it in x.safetensors, as the headers have it",
    ),
    "a name in another file": Lie(
        index(
            {
                "weight_map": dict.fromkeys(weights(), "x.safetensors")
                | {"other": "y.safetensors", "scale": "y.safetensors"}
            }
        ),
        "expected it in x.safetensors, as the headers have it",
    ),
    "files that share a name": Lie(
        index({"weight_map": dict.fromkeys(weights(), "x.safetensors") | {"other": "twice.safetensors"}}),
        "found 'scale', as in twice.safetensors, expected each name once",
    ),
    "files that are not there": Lie(_no_file, "'y.safetensors'", ckpt.CorruptFileError),
    "files that nobody ever ends": Lie(_fifo, "'y.safetensors'", ckpt.CorruptFileError),
    "a terabyte of nothing": Lie(
        lambda folder: os.truncate(folder / "model.safetensors.index.json", 1 << 40), "at most 100000000"
    ),
}
