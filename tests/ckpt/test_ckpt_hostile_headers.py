"""A safetensors header that lies is refused before a byte is trusted, and by rules as strict as safetensors' own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import ckpt
from ckpt.adopted_header import MAX_HEADER_BYTES, parse_header
from ckpt.dtypes import BY_SAFETENSORS
from ckpt.proto.checkpoint_pb2 import Manifest
from ckpt.wire import MANIFEST_MAGIC
from tests.ckpt.hostile import Edit, put, rewrite, storage, tensor
from tests.ckpt.safetensors_files import entry, file_bytes, weights

A, B = entry("F32", [2], 0, 8), entry("U8", [3], 8, 11)
PAYLOAD = bytes(range(11))


def text(**entries: object) -> str:
    return json.dumps({"a": A, "b": B} | entries)


def lone(**changes: object) -> str:
    """``a`` with other fields, before ``b``."""
    return text(a=A | changes)


HEADERS: dict[str, str | bytes] = {
    "no JSON": "x",
    "no object": "[1]",
    "nothing": "",
    "spaces first": " " + text(),
    "text after it": text() + "x",
    "NULs after it": text() + "\0\0",
    "no UTF-8": text().encode().replace(b'"a"', b'"\xff"'),
    "a lone surrogate": text().replace('"a"', '"\\ud800"'),
    "an endless number": lone(data_offsets=[0, 8]).replace("8]", "8" * 5000 + "]", 1),
    "lists in lists": '{"a": ' + "[" * 100_000,
    "a name twice": text().replace('"b"', '"a"'),
    "a field twice": text().replace('"dtype": "F32"', '"dtype": "F32", "dtype": "F32"'),
    "metadata twice": '{"__metadata__": {}, "__metadata__": {}, ' + text()[1:],
    "metadata that is no object": text(__metadata__=[]),
    "metadata that is no text": text(__metadata__={"k": 1}),
    "a tensor that is no object": text(a=[0, 8]),
    "a field too many": lone(strides=[1]),
    "a field too few": text(a={"dtype": "F32", "shape": [2]}),
    "an unknown dtype": lone(dtype="F128"),
    "a dtype that torch lacks": lone(dtype="F6_E2M3"),
    "a dtype that is no text": lone(dtype=["F32"]),
    "a dtype of another size": lone(dtype="F64"),
    "a shape that is no list": lone(shape=2),
    "a shape of text": lone(shape=["2"]),
    "a shape of floats": lone(shape=[2.0]),
    "a shape of bools": lone(shape=[True, 2]),
    "a negative size": lone(shape=[-2]),
    "two negative sizes": lone(shape=[-1, -2]),
    "sizes that overflow": lone(shape=[2**32, 2**32, 2]),
    "a size of 2^64": lone(shape=[2**64]),
    "nothing of a huge size": lone(shape=[0, 2**63]),
    "too many sizes": lone(shape=[1] * 64 + [2]),
    "one offset": lone(data_offsets=[0]),
    "three offsets": lone(data_offsets=[0, 8, 8]),
    "a negative offset": lone(data_offsets=[-8, 0]),
    "offsets the wrong way": lone(data_offsets=[8, 0]),
    "offsets that overlap": text(b=B | {"data_offsets": [4, 7]}),
    "two tensors on the same bytes": text(b=A),
    "a hole": text(b=B | {"shape": [2], "data_offsets": [9, 11]}),
    "a hole at the start": text(a=A | {"shape": [1], "data_offsets": [4, 8]}),
    "bytes after the last one": text(b=B | {"shape": [2], "data_offsets": [8, 10]}),
    "a last one beyond the file": text(b=B | {"shape": [4], "data_offsets": [8, 12]}),
    "an endless name": text(**{"n" * 5000: entry("U8", [0], 11, 11)}),
    "half a byte": text(b=entry("F4", [5], 8, 11)),
    "a half byte alone": text(b=entry("F4", [], 8, 11)),
}


def refused(file: Path) -> None:
    before = sorted(file.parent.iterdir())

    with pytest.raises(ckpt.FormatError):
        ckpt.adopt(file)
    with pytest.raises(ckpt.FormatError):
        ckpt.adopt(file, out=file.parent / "out")
    assert sorted(file.parent.iterdir()) == before


@pytest.mark.parametrize("lie", HEADERS)
def test_a_header_that_breaks_a_rule_is_refused(lie: str, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(file_bytes(HEADERS[lie], PAYLOAD))

    refused(file)


def test_the_header_that_the_lies_are_made_of_is_sound(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(file_bytes(text(__metadata__={"k": "v"}) + "   ", PAYLOAD))

    ckpt.adopt(tmp_path / "x.safetensors")

    assert ckpt.load(tmp_path / "x.safetensors")["b"].tolist() == [8, 9, 10]


@pytest.mark.parametrize("length", [0, 10**6, MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_or_the_limit_is_refused(length: int, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + text().encode())
    if length == MAX_HEADER_BYTES + 1:
        os.truncate(file, 2 * MAX_HEADER_BYTES)

    refused(file)


@pytest.mark.parametrize("size", [0, 7])
def test_a_file_shorter_than_its_length_field_is_refused(size: int, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(bytes(size))

    refused(tmp_path / "x.safetensors")


# --- manifests of adopted files -------------------------------------------------------------------------------------

MANIFESTS: dict[str, Edit] = {
    "a path": lambda m: put(m.files[0], name="../x.safetensors"),
    "a name of another kind": lambda m: put(m.files[0], name="x.bin"),
    "no file": lambda m: put(m, files=[]),
    "a second file without an index": lambda m: m.files.add(name="y.safetensors", header_sha256=bytes(32)),
    "an index beside a lone file": lambda m: m.files.add(name="model.safetensors.index.json", header_sha256=bytes(32)),
    "files that it wrote itself": lambda m: put(m, adopted=False),
    "a transposed tensor": lambda m: put(tensor(m, "embed.weight"), strides=[1, 700]),
    "a tensor at an offset": lambda m: put(tensor(m, "layer.0.bias"), shape=[32], offset=4),
    "a dtype that no header names": lambda m: put(tensor(m, "steps"), dtype="bits8"),
    "another dtype of that size": lambda m: put(tensor(m, "steps"), dtype="uint8"),
    "another shape of that size": lambda m: put(tensor(m, "embed.weight"), shape=[512, 700], strides=[700, 1]),
    "a storage somewhere else": lambda m: put(storage(m, "steps"), offset=storage(m, "steps").offset + 1),
    "a storage in a file that is not there": lambda m: put(storage(m, "steps"), file=1),
    "a header of another length": lambda m: put(m.files[0], header_size=m.files[0].header_size - 8),
    "an attachment": lambda m: m.attachments.add(path="y.txt"),
}


@pytest.mark.parametrize("lie", MANIFESTS)
def test_a_lie_about_an_adopted_file_is_refused(lie: str, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file(weights(), file)
    ckpt.adopt(file)
    rewrite(tmp_path / "x.safetensors.manifest.pb", Manifest(), MANIFEST_MAGIC, MANIFESTS[lie])

    with pytest.raises((ckpt.FormatError, ckpt.CorruptFileError)):
        ckpt.load(file)
    assert not ckpt.verify(file).ok


# --- indexes --------------------------------------------------------------------------------------------------------

INDEXES: dict[str, object] = {
    "no JSON": "x",
    "no object": [],
    "no weight map": {"metadata": {}},
    "a weight map of numbers": {"weight_map": {"scale": 1}},
    "a path upwards": {"weight_map": {"scale": "../x.safetensors"}},
    "an absolute path": {"weight_map": {"scale": "/etc/x.safetensors"}},
    "another kind of file": {"weight_map": {"scale": "x.bin"}},
    "a name that no file has": {"weight_map": dict.fromkeys([*weights(), "more"], "x.safetensors")},
    "a name too few": {"weight_map": dict.fromkeys([*weights()][1:], "x.safetensors")},
    "a name in another file": {
        "weight_map": dict.fromkeys(weights(), "x.safetensors") | {"other": "y.safetensors", "scale": "y.safetensors"}
    },
    "files that share a name": {
        "weight_map": dict.fromkeys(weights(), "x.safetensors") | {"other": "twice.safetensors"}
    },
}


@pytest.mark.parametrize("lie", INDEXES)
def test_an_index_that_its_files_contradict_is_refused(lie: str, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    save_file(weights(), folder / "x.safetensors")
    save_file({"other": weights()["scale"]}, folder / "y.safetensors")
    save_file({"other": weights()["scale"], "scale": weights()["scale"]}, folder / "twice.safetensors")
    index = INDEXES[lie]
    (folder / "model.safetensors.index.json").write_text(index if isinstance(index, str) else json.dumps(index))

    with pytest.raises(ckpt.FormatError):
        ckpt.adopt(folder)
    assert not (folder / "manifest.pb").exists()


def test_a_shard_that_is_missing_or_no_file_is_named(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": dict.fromkeys(weights(), "x.safetensors")})
    (tmp_path / "model.safetensors.index.json").write_text(index)

    for make in (lambda: None, lambda: os.mkfifo(tmp_path / "x.safetensors")):
        make()
        with pytest.raises(ckpt.CorruptFileError, match=r"x\.safetensors"):
            ckpt.adopt(tmp_path)


# --- against safetensors itself -------------------------------------------------------------------------------------

_EDITS: list[Callable[[str], str]] = [
    lambda header: header.replace("8", "7", 1),
    lambda header: header.replace("F32", "I32"),
    lambda header: header.replace('"b"', '"\\u0062"'),
    lambda header: header.replace(", ", ",\n", 1),
    lambda header: header.replace("[2]", "[1, 2]"),
    lambda header: header.replace("[2]", "[]"),
    lambda header: header + "  ",
]
_ALPHABET = st.sampled_from(list('{}[]",:0123456789abF_US32 \\u\n') + list(BY_SAFETENSORS))


@st.composite
def headers(draw: st.DrawFn) -> str:
    """The text of a true header, edited here and there."""
    header = text()
    for edit in draw(st.lists(st.sampled_from(_EDITS), max_size=3)):
        header = edit(header)
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(header)))
        header = header[:place] + draw(_ALPHABET) + header[place + draw(st.integers(0, 2)) :]
    return header


@settings(max_examples=400, deadline=None)
@given(header=headers())
def test_what_is_accepted_safetensors_accepts_and_reads_alike(
    header: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = file_bytes(header, PAYLOAD)
    try:
        entries = parse_header(data[: len(data) - len(PAYLOAD)], size_bytes=len(data), where="x")
    except ckpt.FormatError:
        return
    file = tmp_path_factory.getbasetemp() / "accepted.safetensors"
    file.write_bytes(data)

    with safe_open(file, framework="np") as opened:
        assert sorted(opened.keys()) == sorted(item.name for item in entries)
        for item in entries:
            view = opened.get_slice(item.name)
            row = BY_SAFETENSORS[view.get_dtype()]
            shape = tuple(view.get_shape())
            shape = (*shape[:-1], shape[-1] // row.packed) if row.packed > 1 else shape
            assert (item.dtype, item.shape) == (row.name, shape)


@pytest.mark.parametrize("lie", ["a hole", "two tensors on the same bytes", "bytes after the last one", "half a byte"])
def test_safetensors_refuses_the_same_lies(lie: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(file_bytes(HEADERS[lie], PAYLOAD))

    with pytest.raises(SafetensorError):
        safe_open(tmp_path / "x.safetensors", framework="np").__enter__()


# --- bombs ----------------------------------------------------------------------------------------------------------

_BOMBS = """
import resource, sys, ckpt
from tests.ckpt.safetensors_files import file_bytes
SIZE = 90_000_000
for unit in ("[],", '{"":[]},', '"a":{},', "0,", '"",'):
    with open(sys.argv[1], "wb") as file:
        file.write(file_bytes('{"a":[' + unit * ((SIZE - 40) // len(unit)) + "0]}", b""))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        ckpt.adopt(sys.argv[1])
    except ckpt.FormatError as error:
        assert "at most as many" in str(error), error
        print(unit, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_header_of_many_small_things_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BOMBS, str(tmp_path / "x.safetensors")],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )

    grown = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(grown) == 5, done.stderr
    assert max(grown) < 300, f"{grown} MiB for headers of 86 MiB"
