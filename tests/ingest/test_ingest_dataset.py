"""What opening, splitting and walking a data set promises."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ingest
from ingest.order import rows_at

SCHEMA = ingest.Schema(
    fields=(ingest.Field(name="x", dtype="float32", shape=(4,)), ingest.Field(name="y", dtype="int64")), label="y"
)


@pytest.fixture
def data(tmp_path: Path) -> ingest.Dataset:
    values = np.random.default_rng(3).normal(size=(103, 4))
    return ingest.ingest([{"x": values, "y": np.arange(103)}], SCHEMA, tmp_path / "data", shard_rows=40)


def labels(batches: list[ingest.Batch]) -> list[int]:
    return torch.cat([batch["y"] for batch in batches]).tolist()


@pytest.mark.parametrize("shown", ["data set", "batch"])
def test_a_column_that_is_not_there_is_named_beside_those_that_are(data: ingest.Dataset, shown: str) -> None:
    rows = data if shown == "data set" else next(data.batches(8, seed=0))

    with pytest.raises(ingest.UnknownColumnError, match="no column 'z' in these rows: the columns are x, y"):
        rows["z"]


@given(length=st.integers(1, 3000), seed=st.integers(0, 2**63), epoch=st.integers(0, 1000))
def test_an_epochs_order_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    order = rows_at(0, length, length=length, seed=seed, epoch=epoch)

    assert np.array_equal(np.sort(order), np.arange(length))


@given(start=st.integers(0, 500), size=st.integers(0, 500))
def test_seeking_gives_what_walking_gives(start: int, size: int) -> None:
    whole = rows_at(0, 1000, length=1000, seed=1, epoch=2)

    assert np.array_equal(rows_at(start, start + size, length=1000, seed=1, epoch=2), whole[start : start + size])


def test_a_seek_into_a_huge_epoch_needs_no_list_of_it() -> None:
    order = rows_at(10**12, 10**12 + 5, length=2 * 10**12, seed=0, epoch=0)

    assert len(set(order.tolist())) == 5
    assert order.min() >= 0
    assert order.max() < 2 * 10**12


def test_every_row_is_equally_likely_at_every_place() -> None:
    counts = np.zeros((20, 20))
    for seed in range(4000):
        counts[np.arange(20), rows_at(0, 20, length=20, seed=seed, epoch=0)] += 1

    # 19 × 19 degrees of freedom: mean 361, standard deviation 27; the seeds are fixed, so this cannot flicker.
    chi_square = ((counts - 200) ** 2 / 200).sum()
    assert 250 < chi_square < 480


def test_epochs_and_seeds_give_different_orders() -> None:
    orders = {
        tuple(rows_at(0, 50, length=50, seed=seed, epoch=epoch).tolist()) for seed in range(3) for epoch in range(3)
    }

    assert len(orders) == 9


def test_an_epoch_shows_every_row_once_with_its_own_label(data: ingest.Dataset) -> None:
    batches = list(data.batches(10, seed=0, epochs=1))

    assert sorted(labels(batches)) == list(range(103))
    assert [len(batch) for batch in batches] == [10] * 10 + [3]
    whole = data["x"]
    assert all(torch.equal(batch["x"], whole[batch["y"]]) for batch in batches)


def test_training_resumes_at_exactly_the_next_row(data: ingest.Dataset) -> None:
    whole = list(data.batches(10, seed=4, epochs=3))
    stopped_at = whole[16].next

    resumed = list(data.batches(10, seed=4, start=stopped_at, epochs=3))

    assert labels(resumed) == labels(whole[17:])


def test_another_batch_size_resumes_at_the_same_row(data: ingest.Dataset) -> None:
    whole = labels(list(data.batches(10, seed=4, epochs=2)))

    resumed = labels(list(data.batches(7, seed=4, start=(0, 30), epochs=2)))

    assert resumed == whole[30:]


def test_the_end_of_an_epoch_resumes_at_the_next_one(data: ingest.Dataset) -> None:
    *_, last = data.batches(10, seed=4, epochs=1)

    assert last.next == (1, 0)


@pytest.mark.parametrize("start", [(0, 103), (-1, 0), (0, -1)])
def test_an_impossible_start_is_refused(data: ingest.Dataset, start: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="row below 103"):
        next(data.batches(10, seed=0, start=start))


def test_a_split_is_the_same_every_time_and_shares_no_row(data: ingest.Dataset) -> None:
    train, held_out = data.split(held_out=0.2, seed=1)
    again, _ = data.split(held_out=0.2, seed=1)

    assert sorted(train["y"].tolist() + held_out["y"].tolist()) == list(range(103))
    assert 10 <= len(held_out) <= 32
    assert train.digest == again.digest != held_out.digest


def test_equal_rows_fall_on_one_side_and_stay_there_when_data_grows(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    small = ingest.ingest([{"x": values, "y": np.arange(60)}], SCHEMA, tmp_path / "small")
    twice = {"x": np.concatenate([values] * 2), "y": np.concatenate([np.arange(60)] * 2)}
    grown = ingest.ingest([twice], SCHEMA, tmp_path / "grown", shard_rows=7)

    _, aside = small.split(held_out=0.3)
    _, aside_grown = grown.split(held_out=0.3)

    assert sorted(aside_grown["y"].tolist()) == sorted(aside["y"].tolist() * 2)


def test_a_split_with_an_empty_side_says_so(data: ingest.Dataset) -> None:
    with pytest.raises(ValueError, match="held-out side"):
        data.split(held_out=1e-9)


def test_shuffled_labels_move_between_rows_and_leave_the_data_alone(data: ingest.Dataset) -> None:
    spoiled = data.with_shuffled_labels(seed=4)

    assert torch.equal(spoiled["x"], data["x"])
    assert sorted(spoiled["y"].tolist()) == list(range(103))
    assert (spoiled["y"] == data["y"]).float().mean() < 0.1
    assert spoiled.digest != data.digest
    assert data.with_shuffled_labels(seed=4).digest == spoiled.digest


def test_labels_that_are_not_there_cannot_be_shuffled(tmp_path: Path) -> None:
    schema = ingest.Schema(fields=(ingest.Field(name="v", dtype="float32"),))
    unlabelled = ingest.ingest([{"v": np.zeros(3)}], schema, tmp_path / "data")

    with pytest.raises(ingest.SchemaError, match="no label"):
        unlabelled.with_shuffled_labels(seed=0)


def test_mapped_arrays_are_views_and_tensors_are_copies(data: ingest.Dataset) -> None:
    shards = data.arrays("x")

    assert [len(shard) for shard in shards] == [40, 40, 23]
    assert not any(shard.flags.owndata or shard.flags.writeable for shard in shards)
    data["x"].zero_()
    assert shards[0].any()


def test_an_open_data_set_holds_no_file_descriptor(data: ingest.Dataset) -> None:
    before = len(os.listdir("/proc/self/fd"))

    opened = [ingest.open(data.folder) for _ in range(5)]

    assert len(os.listdir("/proc/self/fd")) == before
    assert len(opened) == 5


@pytest.mark.parametrize("place", [0, 0.5, -1])
def test_a_flipped_bit_anywhere_in_a_shard_is_named(data: ingest.Dataset, place: float) -> None:
    shard = data.folder / "shard-00001.arrow"
    content = bytearray(shard.read_bytes())
    content[-1 if place == -1 else int(place * len(content))] ^= 1
    shard.write_bytes(content)

    with pytest.raises(ingest.CorruptShardError, match=r"shard-00001.arrow.*expected sha256"):
        ingest.open(data.folder)


def test_a_shard_cut_short_or_gone_is_named(data: ingest.Dataset) -> None:
    shard = data.folder / "shard-00002.arrow"
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(ingest.CorruptShardError, match="bytes, found"):
        ingest.open(data.folder)

    shard.unlink()
    with pytest.raises(ingest.CorruptShardError, match="expected a file, found nothing"):
        ingest.open(data.folder)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"rows": 104}, "103 rows in the shards, expected 104"),
        ({"rows_read": 9}, "rows taken and rejected"),
        ({"format": 2}, "format 2"),
        ({"schema": {"fields": []}}, "KeyError"),
        ({"shard_rows": 39}, "shard-00000.arrow, expected 39"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(
    data: ingest.Dataset, change: dict[str, object], found: str
) -> None:
    path = data.folder / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(ingest.CorruptIndexError, match=found):
        ingest.open(data.folder)


def test_an_index_cannot_point_outside_its_folder(data: ingest.Dataset) -> None:
    path = data.folder / "index.json"
    path.write_text(path.read_text().replace("shard-00000.arrow", "../shard-00000.arrow"))

    with pytest.raises(ingest.CorruptIndexError, match="plain file name"):
        ingest.open(data.folder)


def test_a_folder_without_an_index_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(ingest.DatasetNotFoundError, match=r"index.json is missing"):
        ingest.open(tmp_path)


def test_the_package_exports_what_it_says() -> None:
    assert set(ingest.__all__) == {
        "REASONS", "AllRowsRejectedError", "Batch", "Block", "CorruptIndexError", "CorruptShardError", "Dataset",
        "DatasetExistsError", "DatasetNotFoundError", "EmptySourceError", "Field", "IngestError", "Position",
        "Rejection", "Schema", "SchemaError", "SourceNotFoundError", "UnknownColumnError", "ingest", "open", "read_csv",
            "read_texts",
    }  # fmt: skip
    assert all(hasattr(ingest, name) for name in ingest.__all__)
