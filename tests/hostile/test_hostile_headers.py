"""A header that we accept is one that safetensors accepts and reads alike; what it refuses, we refuse."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

import ckpt
from ckpt.format.adopted_header import parse_header
from ckpt.format.dtypes import BY_SAFETENSORS
from tests.ckpt.safetensors_files import file_bytes
from tests.hostile.lying_headers import HEADERS, PAYLOAD, text

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
    HEADERS[lie].tell(tmp_path / "x.safetensors")

    with pytest.raises(SafetensorError):
        safe_open(tmp_path / "x.safetensors", framework="np").__enter__()
