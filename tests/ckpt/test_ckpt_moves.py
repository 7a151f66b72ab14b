"""Rows that were inserted, removed, put in another order, and trained on top of it: found, small, and exact."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckpt
from ckpt.deltas.moves import FEW_ANCHORS, Grain, moves
from ckpt.format.dtypes import torch_dtype
from ckpt.proto.delta_pb2 import Delta
from tests.ckpt.equality import same
from tests.ckpt.strategies import DTYPES
from tests.hostile.edits import put, rewrite_delta

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")

ROWS, COLUMNS = 3000, 384
ROW_BYTES = 4 * COLUMNS
LONG = COLUMNS * 200  # a part of the rows


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.02


def trained(tensor: torch.Tensor, step: float = 1e-4) -> torch.Tensor:
    return tensor + step * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(9))


def made_in(folder: Path, old: object, new: object, **options: tuple[str, ...]) -> ckpt.Delta:
    """The delta between two states, applied and compared with the second one."""
    for name, state in (("old", old), ("new", new)):
        ckpt.save(state, folder / name)
    delta = ckpt.diff(folder / "old", folder / "new", folder / "delta", **options)
    made = ckpt.apply(folder / "old", folder / "delta", folder / "made")
    assert made.seal == ckpt.read_manifest(folder / "new").seal
    assert same(ckpt.load(folder / "made", verify="sha256"), new)
    return delta


def frame_bytes(delta: ckpt.Delta) -> int:
    return sum(frame.encoded_size for frame in delta.frames())


def blocks(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Blocks of rows in another order."""
    parts = rows.split(size)
    order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(3))
    return torch.cat([parts[place] for place in order])


EDITS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {  # and rows that neither side knows
    "appended": (lambda w: torch.cat([w, randn(10, COLUMNS, seed=1)]), 10),
    "at the front": (lambda w: torch.cat([randn(1, COLUMNS, seed=1), w]), 1),
    "in the middle": (lambda w: torch.cat([w[:999], randn(7, COLUMNS, seed=1), w[999:]]), 7),
    "at two places": (
        lambda w: torch.cat([w[:50], randn(3, COLUMNS, seed=1), w[50:2900], randn(2, COLUMNS, seed=2), w[2900:]]), 5
    ),
    "removed at the end": (lambda w: w[:-30].clone(), 0),
    "removed at the front": (lambda w: w[31:].clone(), 0),
    "removed in the middle": (lambda w: torch.cat([w[:777], w[1001:]]), 0),
    "blocks in another order": (lambda w: blocks(w, 41), 0),
    "halves that changed places": (lambda w: torch.cat([w[1400:], w[:1400]]), 0),
    "rows twice": (lambda w: torch.cat([w[:2000], w[1000:]]), 0),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16])
def test_rows_that_moved_cost_nothing(edit: str, dtype: torch.dtype, tmp_path: Path) -> None:
    change, new_rows = EDITS[edit]
    old = randn(ROWS, COLUMNS)
    pair = [t.to(dtype) if dtype.is_floating_point else (t * 1e5).to(dtype) for t in (old, change(old))]

    delta = made_in(tmp_path, {"w": pair[0]}, {"w": pair[1]})

    # rows twice and blocks: 16 bytes for a run, the planes of zeros, and a head for each frame
    assert frame_bytes(delta) < new_rows * COLUMNS * dtype.itemsize + 600
    assert {frame.codec for frame in delta.frames()} <= {"moved", "contextual", "sparse"}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_moved_and_were_trained_cost_what_training_costs(
    edit: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    change, new_rows = EDITS[edit]
    old = randn(ROWS, COLUMNS)
    for name in ("plain", "moved"):
        (tmp_path / name).mkdir()
    plain = made_in(tmp_path / "plain", {"w": old.to(dtype)}, {"w": trained(old).to(dtype)})

    delta = made_in(tmp_path / "moved", {"w": old.to(dtype)}, {"w": trained(change(old)).to(dtype)})

    per_row = frame_bytes(plain) / ROWS
    assert frame_bytes(delta) < 1.03 * per_row * len(change(old)) + new_rows * COLUMNS * dtype.itemsize + 2000


def test_a_table_that_grew_is_found_although_all_of_it_was_trained_far(tmp_path: Path) -> None:
    """No row has the signs and exponents that it had: only the ends of both sides say where it lies."""
    old = randn(ROWS, COLUMNS)
    plain = trained(old, 0.01)
    (tmp_path / "plain").mkdir()
    reference = made_in(tmp_path / "plain", {"w": old}, {"w": plain})

    delta = made_in(tmp_path, {"w": old}, {"w": torch.cat([plain[:1234], randn(20, COLUMNS, seed=5), plain[1234:]])})

    assert frame_bytes(delta) < 1.02 * frame_bytes(reference) + 30 * ROW_BYTES


def test_single_rows_in_any_order_are_found_however_many_there_are(tmp_path: Path) -> None:
    """More of them than are remembered at first, of which every second one would be found."""
    old = randn(FEW_ANCHORS + 999, 32).bfloat16()
    order = torch.randperm(len(old), generator=torch.Generator().manual_seed(3))

    delta = made_in(tmp_path, {"w": old}, {"w": old[order]})

    assert frame_bytes(delta) < 4 * len(old)  # 18 bits for each would tell any order


def test_a_layer_inserted_into_a_stack_costs_the_layer(tmp_path: Path) -> None:
    old = randn(6, 256, 256)
    new = torch.cat([old[:2], randn(1, 256, 256, seed=1), old[2:]])

    delta = made_in(tmp_path, {"w": old}, {"w": new})

    assert frame_bytes(delta) < 256 * 256 * 4


def test_elements_inserted_into_a_vector_cost_themselves(tmp_path: Path) -> None:
    old = randn(900_000)

    delta = made_in(tmp_path, {"w": old}, {"w": torch.cat([old[:400_001], randn(5, seed=1), old[400_001:]])})

    assert frame_bytes(delta) < 1000


@pytest.mark.parametrize("joined", [True, False], ids=["joined", "cut in two"])
def test_a_storage_joined_or_cut_takes_its_own_part(joined: bool, tmp_path: Path) -> None:
    flat = randn(2 * LONG)
    whole = {"a": flat[: LONG + 32], "b": flat[LONG + 32 :]}
    parts = {name: tensor.clone() for name, tensor in whole.items()}

    delta = made_in(tmp_path, *((parts, whole) if joined else (whole, parts)))

    assert frame_bytes(delta) < (LONG * 4 if joined else 2000)  # the second part has another base


def test_another_dtype_is_raw(tmp_path: Path) -> None:
    old = randn(ROWS, COLUMNS)

    delta = made_in(tmp_path, {"w": old}, {"w": old.bfloat16()})

    assert {frame.codec for frame in delta.frames()} == {"raw"}


def test_without_moved_whole_chunks_are_found_and_the_others_are_raw(tmp_path: Path) -> None:
    old = randn(ROWS, COLUMNS)
    new = torch.cat([old[:999], randn(7, COLUMNS, seed=1), old[999:]])

    delta = made_in(tmp_path, {"w": old}, {"w": new}, codecs=("sparse", "planes"))

    assert {frame.codec for frame in delta.frames()} == {"sparse", "raw"}
    assert frame_bytes(delta) < 1 << 20


def test_what_is_not_rows_is_left_to_bsdiff_while_it_is_small(tmp_path: Path) -> None:
    old = randn(100, 48)

    delta = made_in(tmp_path, {"w": old}, {"w": torch.cat([old, randn(100, 3, seed=1)], dim=1)})

    assert {frame.codec for frame in delta.frames()} == {"bsdiff"}


def test_the_same_pair_gives_the_same_bytes(tmp_path: Path) -> None:
    old = randn(ROWS, COLUMNS)
    made_in(tmp_path, {"w": old}, {"w": trained(blocks(old, 41))})

    ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "again")

    for file in (tmp_path / "delta").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    dtype=st.sampled_from(DTYPES),
    columns=st.sampled_from([1, 3, 40, 3000, 40_000]),
    order=st.lists(st.one_of(st.integers(0, 39), st.none()), max_size=60),
    changed=st.sampled_from([0.0, 0.01, 0.5]),
    seed=st.integers(0, 100),
)
def test_any_rows_in_any_order_become_the_target(
    dtype: str,
    columns: int,
    order: list[int | None],
    changed: float,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Rows taken in any order, twice or not at all, new ones among them, some bits of them changed."""
    noise = np.random.default_rng(seed)
    row_bytes = torch_dtype(dtype).itemsize * columns
    base = noise.integers(0, 256, (40, row_bytes), np.uint8)
    new = [base[row].copy() if row is not None else noise.integers(0, 256, row_bytes, np.uint8) for row in order]
    target = np.array(new, np.uint8).reshape(len(order), row_bytes)
    target ^= (noise.random(target.shape) < changed).astype(np.uint8)
    states = []
    for grid in (base, target):
        flat = torch.from_numpy(grid & 1 if dtype == "bool" else grid).reshape(-1)
        states.append({"w": flat.view(torch_dtype(dtype)).reshape(len(grid), columns)})

    made_in(tmp_path_factory.mktemp("pair"), *states)


def test_a_frame_beyond_its_base_is_refused(tmp_path: Path) -> None:
    old = randn(ROWS, COLUMNS)
    made_in(tmp_path, {"w": old}, {"w": blocks(old, 41)})

    def edit(message: Delta) -> None:
        put(message.storages[0].frames[0], base_size=2**40)

    rewrite_delta(tmp_path / "delta", edit)

    assert ckpt.read_delta(tmp_path / "delta").frames()[0].codec == "moved"
    with pytest.raises(ckpt.CorruptFrameError, match="found a base of 4608000 bytes, expected 1099511627776"):
        ckpt.apply(tmp_path / "old", tmp_path / "delta", tmp_path / "out")


def test_finding_takes_little_memory_however_many_rows_there_are() -> None:
    base = np.random.default_rng(0).integers(0, 1 << 32, (96 << 20) // 4, np.uint32)
    target = np.concatenate([base[: 3 << 20], base[:999], base[3 << 20 :]])
    by = Grain(unit=64, width=4, ignored_bits=23)
    tracemalloc.start()

    found = moves(
        memoryview(base.view(np.uint8)), memoryview(target.view(np.uint8)), by, first_shift=0, last_shift=-3996
    )

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.known_bytes() > target.nbytes - 3996 - 2 * 64
    assert peak < 40 << 20  # 26 MiB; with every row remembered 91


def test_finding_rows_in_any_order_takes_little_memory_too() -> None:
    noise = np.random.default_rng(0)
    base = noise.integers(0, 1 << 32, (1 << 20, 16), np.uint32)
    target = base[noise.permutation(len(base))]
    tracemalloc.start()

    found = moves(memoryview(base.view(np.uint8).reshape(-1)), memoryview(target.view(np.uint8).reshape(-1)),
                  Grain(unit=64, width=4, ignored_bits=23), first_shift=0, last_shift=0)  # fmt: skip

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.known_bytes() == target.nbytes
    assert peak < 128 << 20  # 112 MiB


def test_neighbours_of_a_cut_are_told_apart_by_what_they_hold() -> None:
    base = np.random.default_rng(0).integers(0, 1 << 32, (100, 16), np.uint32)
    target = np.concatenate([base[:30], base[55:]])
    by = Grain(unit=64, width=4, ignored_bits=0)

    found = moves(memoryview(base.view(np.uint8).reshape(-1)), memoryview(target.view(np.uint8).reshape(-1)), by,
                  first_shift=0, last_shift=25 * 64)  # fmt: skip

    assert [column.tolist() for column in found] == [[0, 30 * 64], [30 * 64, 75 * 64], [0, 25 * 64]]


def test_units_that_differ_too_little_to_be_told_apart_stay_where_they_are() -> None:
    """One sign in 1600 went from a row to another: no row moved."""
    base, target = np.ones((100, 16), np.float32), np.full((100, 16), 1.5, np.float32)
    base[10, 0], target[20, 0] = -1, -1.5
    sides = (memoryview(grid.view(np.uint8).reshape(-1)) for grid in (base, target))

    found = moves(*sides, Grain(unit=64, width=4, ignored_bits=23), first_shift=0, last_shift=0)

    assert [column.tolist() for column in found] == [[0], [6400], [0]]
