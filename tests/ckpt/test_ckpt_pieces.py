"""Tensors that several writers stored in pieces: read whole, checked piece by piece, and written anew in plain form."""

import shutil
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import ckpt
from ckpt.deltas.delta import Action
from ckpt.format.boxes import Box, chunks_under, slabs, whole
from ckpt.format.digests import CHUNK_BYTES, Encoder
from ckpt.format.dtypes import torch_dtype
from ckpt.format.piece_rules import MAX_CUT_AXES, untiled
from ckpt.saving.memory import BLOCK_BYTES, rejoin
from tests.ckpt.equality import same
from tests.ckpt.pieces import along, rows, save_in_pieces
from tests.ckpt.strategies import DTYPES, tilings

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")

QUARTERS = [Box((0, 0), (2, 3)), Box((0, 3), (2, 2)), Box((2, 0), (4, 3)), Box((2, 3), (4, 2))]


def state() -> dict[str, Any]:
    return {
        "model": {
            "rows": torch.arange(12.0).reshape(6, 2),
            "columns": torch.arange(30).reshape(5, 6).to(torch.bfloat16),
        },
        "grid": torch.arange(30.0, dtype=torch.float64).reshape(6, 5),
        "plain": torch.arange(3),
        "steps": {0: 1.5, 1: None},
    }


CUTS = {"model/rows": rows((6, 2), 2, 3), "model/columns": along((5, 6), 1, 4), "grid": QUARTERS}


def test_a_state_in_pieces_is_loaded_whole(tmp_path: Path) -> None:
    save_in_pieces(state(), tmp_path / "c", CUTS)

    for options in ({}, {"mmap": False}, {"verify": "sha256"}, {"verify": "none"}, {"verify": "lazy"}):
        assert same(ckpt.load(tmp_path / "c", **options), state())
    assert same(ckpt.load(tmp_path / "c", keys=["grid"]), {"grid": state()["grid"]})
    with ckpt.open(tmp_path / "c") as opened:
        assert same(opened["model/columns"], state()["model"]["columns"])
    assert ckpt.inspect(tmp_path / "c").tensors == 4


@pytest.mark.parametrize("index", [0, 4, -1, slice(1, 5), slice(None), slice(0, 6, 3), slice(3, 3)])
def test_rows_of_a_tensor_in_pieces_are_those_of_the_whole(tmp_path: Path, index: int | slice) -> None:
    save_in_pieces(state(), tmp_path / "c", CUTS)

    with ckpt.open(tmp_path / "c") as opened:
        assert torch.equal(opened.slice("grid", index), state()["grid"][index])


def test_consolidating_gives_the_root_of_saving_the_whole_state(tmp_path: Path) -> None:
    save_in_pieces(state(), tmp_path / "c", CUTS, metadata={"k": "v"})
    plain = ckpt.save(state(), tmp_path / "plain", metadata={"k": "v"})

    made = ckpt.consolidate(tmp_path / "c", tmp_path / "whole")

    assert (made.root, made.seal) == (plain.root, plain.seal)
    assert made.pieces == ()
    assert ckpt.verify(tmp_path / "whole").ok
    assert same(ckpt.load(tmp_path / "whole"), state())
    assert ckpt.consolidate(tmp_path / "plain", tmp_path / "again").root == plain.root


def test_tensors_longer_than_a_block_are_consolidated_in_their_order(tmp_path: Path) -> None:
    long = {"w": torch.randn(3, 1 << 20, 2), "v": torch.randn(1 << 10, 700)}
    cuts = {"w": along((3, 1 << 20, 2), 1, 12345, 999_999), "v": rows((1 << 10, 700), 333)}
    save_in_pieces(long, tmp_path / "c", cuts)

    assert ckpt.consolidate(tmp_path / "c", tmp_path / "whole").root == ckpt.save(long, tmp_path / "plain").root
    assert same(ckpt.load(tmp_path / "c"), long)


def test_attachments_come_along_and_a_bad_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(bytes(range(250)) * (BLOCK_BYTES // 200))
    plain = ckpt.save(state(), tmp_path / "c", attachments={"docs/note": tmp_path / "note"})

    assert ckpt.consolidate(tmp_path / "c", tmp_path / "whole").seal == plain.seal
    (tmp_path / "c/docs/note").write_bytes(bytes(BLOCK_BYTES // 200 * 250))
    with pytest.raises(ckpt.CorruptChunkError, match="docs/note"):
        ckpt.consolidate(tmp_path / "c", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_tied_tensors_in_pieces_stay_tied(tmp_path: Path) -> None:
    shared = torch.arange(12.0).reshape(6, 2)
    save_in_pieces({"a": shared, "b": shared}, tmp_path / "c", {"a": rows((6, 2), 4)}, ties={"b": "a"})

    loaded = ckpt.load(tmp_path / "c")
    whole_root = ckpt.consolidate(tmp_path / "c", tmp_path / "whole").root

    loaded["a"][0, 0] = 7
    assert loaded["b"][0, 0] == 7
    assert whole_root == ckpt.save({"a": shared, "b": shared}, tmp_path / "plain").root


def test_the_root_covers_how_a_tensor_was_cut(tmp_path: Path) -> None:
    manifest = save_in_pieces(
        {"w": torch.tensor([1.0, 2.0, 3.0])}, tmp_path / "c", {"w": [Box((0,), (2,)), Box((2,), (1,))]}
    )
    pieces = Encoder("treering/pieces/v1").integer(2)
    pieces.string("w").integers([0]).integers([2]).integer(0)
    pieces.string("w").integers([2]).integers([1]).integer(1)

    expected = Encoder("treering/pieced-root/v1").raw(manifest.weights_digest).raw(pieces.digest())
    assert manifest.root_digest == expected.raw(manifest.state_digest).digest()
    assert manifest.root != ckpt.save({"w": torch.tensor([1.0, 2.0, 3.0])}, tmp_path / "plain").root


def test_a_flipped_bit_is_named_by_tensor_piece_and_chunk(tmp_path: Path) -> None:
    save_in_pieces({"w": torch.zeros(1 << 20)}, tmp_path / "c", {"w": rows((1 << 20,), 1 << 19)})
    file = next((tmp_path / "c").glob("extra-*"))
    data = bytearray(file.read_bytes())
    data[-1] = 1
    file.write_bytes(data)
    expected = r"chunk 1 of the storage of the piece \[524288:1048576\] of 'w'"

    report = ckpt.verify(tmp_path / "c")

    assert [str(fault.owner) for fault in report.faults] == ["the storage of the piece [524288:1048576] of 'w'"]
    for level in ("crc32", "sha256"):
        with pytest.raises(ckpt.CorruptChunkError, match=expected):
            ckpt.load(tmp_path / "c", verify=level)
    with ckpt.open(tmp_path / "c") as opened:
        assert opened.slice("w", slice(0, 3 << 18)).sum() == 0
        with pytest.raises(ckpt.CorruptChunkError, match=expected):
            opened.slice("w", -1)
    with pytest.raises(ckpt.CorruptChunkError, match=expected):
        ckpt.consolidate(tmp_path / "c", tmp_path / "whole")


def test_other_readers_see_whole_tensors_alone(tmp_path: Path) -> None:
    save_in_pieces(state(), tmp_path / "c", CUTS)

    named = {file.name: set(_keys(file)) for file in (tmp_path / "c").glob("*.safetensors")}

    assert {name.partition("-")[0] for name in named} == {"weights", "extra"}
    assert next(keys for name, keys in named.items() if name.startswith("weights")) == {"plain"}


def _keys(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())


def test_a_delta_between_states_in_pieces_gives_the_target(tmp_path: Path) -> None:
    changed = state()
    changed["grid"][5, 4] = -1
    old = save_in_pieces(state(), tmp_path / "old", CUTS)
    new = save_in_pieces(changed, tmp_path / "new", CUTS)
    recut = save_in_pieces(changed, tmp_path / "recut", {"grid": rows((6, 5), 1)})

    delta = ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "delta")
    ckpt.diff(tmp_path / "new", tmp_path / "recut", tmp_path / "recutting")

    assert [operation.action for operation in delta.storages].count(Action.PATCH) == 1
    assert [operation.action for operation in delta.storages].count(Action.NEW) == 0
    assert ckpt.apply(tmp_path / "old", tmp_path / "delta", tmp_path / "made").root == new.root != old.root
    assert ckpt.apply(tmp_path / "new", tmp_path / "recutting", tmp_path / "remade").root == recut.root
    assert same(ckpt.load(tmp_path / "remade"), changed)


def test_a_bad_piece_is_repaired_from_a_copy(tmp_path: Path) -> None:
    save_in_pieces(state(), tmp_path / "c", CUTS)
    shutil.copytree(tmp_path / "c", tmp_path / "good")
    file = next((tmp_path / "c").glob("extra-*"))
    data = bytearray(file.read_bytes())
    data[4100] ^= 1
    file.write_bytes(data)

    assert ckpt.repair(tmp_path / "c", tmp_path / "good").ok
    assert same(ckpt.load(tmp_path / "c"), state())


@settings(max_examples=30, deadline=None)
@given(tiling=tilings(), dtype=st.sampled_from(DTYPES), data=st.data())
def test_any_tiling_of_any_dtype_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, tiling: tuple[tuple[int, ...], list[Box]], dtype: str, data: st.DataObject
) -> None:
    shape, boxes = tiling
    folder = tmp_path_factory.mktemp("tiling")
    size = prod(shape) * torch_dtype(dtype).itemsize
    raw = torch.frombuffer(bytearray(data.draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8)
    tensor = (raw & 1 if dtype == "bool" else raw).view(torch_dtype(dtype)).reshape(shape)

    save_in_pieces({"w": tensor}, folder / "c", {"w": boxes})

    assert same(ckpt.load(folder / "c"), {"w": tensor})
    assert ckpt.consolidate(folder / "c", folder / "whole").root == ckpt.save({"w": tensor}, folder / "plain").root


@st.composite
def heaps(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A tiling, with a box moved, taken out, or twice: a tiling or none."""
    shape, boxes = draw(tilings())
    if draw(st.booleans()):
        number = draw(st.integers(0, len(boxes) - 1))
        offsets = tuple(draw(st.integers(0, size - 1)) for size in shape)
        boxes[number] = Box(offsets, tuple(draw(st.integers(1, size)) for size in shape))
    return shape, boxes if draw(st.booleans()) else boxes[:-1]


@given(heap=heaps())
def test_boxes_tile_a_tensor_exactly_when_each_element_lies_in_one(heap: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = heap
    inside = all(end <= size for box in boxes for end, size in zip(box.ends, shape, strict=True))
    counts = [sum(_holds(box, element) for box in boxes) for element in product(*map(range, shape))]

    assert (untiled(shape, boxes) is None) == (inside and set(counts) == {1})


def _holds(box: Box, element: tuple[int, ...]) -> bool:
    return all(start <= place < end for start, place, end in zip(box.offsets, element, box.ends, strict=True))


def test_a_chunk_that_just_fits_between_two_rows_is_not_read() -> None:
    """Columns of 1 MiB, of which every second one is wanted: each row is two chunks, the first of them wanted."""
    under = list(chunks_under(Box((1, 0), (2, 1)), whole((3, 2)), item_bytes=CHUNK_BYTES))

    assert under == [range(2, 3), range(4, 5)]


@given(tiling=tilings(), item_bytes=st.sampled_from([1 << 16, 1 << 18, 3 << 18, 1 << 20, 5 << 19]), data=st.data())
def test_the_chunks_under_a_box_are_those_that_hold_its_elements(
    tiling: tuple[tuple[int, ...], list[Box]], item_bytes: int, data: st.DataObject
) -> None:
    shape, boxes = tiling
    part, shift = data.draw(st.sampled_from(boxes)), data.draw(st.integers(0, 3)) * item_bytes
    elements = {element: number for number, element in enumerate(product(*map(range, shape)))}
    expected: set[int] = set()
    for element, number in elements.items():
        if _holds(part, element):
            start = shift + number * item_bytes
            expected |= set(range(start // CHUNK_BYTES, -(-(start + item_bytes) // CHUNK_BYTES)))

    found = list(chunks_under(part, whole(shape), item_bytes=item_bytes, shift=shift))

    assert {chunk for run in found for chunk in run} == expected


@given(shape=st.lists(st.integers(1, 6), max_size=4), at_most=st.integers(1, 40))
def test_slabs_follow_each_other_in_row_major_order(shape: list[int], at_most: int) -> None:
    elements = torch.arange(prod(shape)).reshape(shape)

    parts = [elements[box.within(whole(shape))] for box in slabs(shape, at_most=at_most)]

    assert max(part.numel() for part in parts) <= at_most
    assert torch.equal(torch.cat([part.reshape(-1) for part in parts]), elements.reshape(-1))


def test_boxes_cut_along_many_axes_are_not_counted() -> None:
    """Each axis that is cut doubles the corners of a box."""
    axes = MAX_CUT_AXES + 1
    boxes = [Box((number,) * axes, (1,) * axes) for number in range(2)]

    assert untiled((2,) * axes, boxes) == f"cuts along {axes} axes, of which at most {MAX_CUT_AXES} are read"


@pytest.mark.parametrize(
    "sizes",
    [
        [2 * CHUNK_BYTES, CHUNK_BYTES, 5],
        [3, CHUNK_BYTES - 3, 1, 2 * CHUNK_BYTES],
        [CHUNK_BYTES + 1, CHUNK_BYTES - 2, 1, 7, 3 * CHUNK_BYTES + 9],
        [5, 0, 6],
        [],
    ],
)
def test_pieces_of_any_size_are_joined_to_whole_chunks(sizes: list[int]) -> None:
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]

    blocks = [bytes(block) for block in rejoin(memoryview(piece) for piece in pieces)]

    assert b"".join(blocks) == b"".join(pieces)
    assert all(len(block) % CHUNK_BYTES == 0 for block in blocks[:-1])
    assert all(blocks)
