"""What ``ingest`` writes, refuses and leaves behind."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ingest

SCHEMA = ingest.Schema(
    fields=(
        ingest.Field(name="x", dtype="float32", shape=(2, 3), low=-1, high=1),
        ingest.Field(name="y", dtype="int64", allowed=(0, 1, 2)),
    ),
    label="y",
)


def blocks(rows: int, *, block_rows: int = 7) -> Iterator[ingest.Block]:
    """Good rows, the same for the same ``rows`` whatever the block size."""
    values = np.random.default_rng(5).uniform(-1, 1, (rows, 2, 3))
    labels = np.arange(rows) % 3
    for start in range(0, rows, block_rows):
        yield {"x": values[start : start + block_rows], "y": labels[start : start + block_rows]}


def rejects(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "rejects.jsonl").read_text().splitlines()]


def test_good_rows_come_back_bit_for_bit_in_order(tmp_path: Path) -> None:
    data = ingest.ingest(blocks(50), SCHEMA, tmp_path / "data", shard_rows=16)

    expected = np.concatenate([block["x"] for block in blocks(50)]).astype(np.float32)
    assert np.array_equal(data["x"].numpy(), expected)
    assert data["y"].tolist() == [row % 3 for row in range(50)]
    assert [shard.rows for shard in data.index.shards] == [16, 16, 16, 2]


def test_the_digest_does_not_depend_on_shard_or_block_size(tmp_path: Path) -> None:
    one = ingest.ingest(blocks(50), SCHEMA, tmp_path / "one")
    many = ingest.ingest(blocks(50, block_rows=11), SCHEMA, tmp_path / "many", shard_rows=3)
    other = ingest.ingest(blocks(49), SCHEMA, tmp_path / "other")

    assert one.digest == many.digest
    assert one.digest != other.digest


def test_the_digest_covers_the_schema(tmp_path: Path) -> None:
    wider = ingest.Schema(fields=(SCHEMA.fields[0], ingest.Field(name="y", dtype="int64")), label="y")

    strict = ingest.ingest(blocks(9), SCHEMA, tmp_path / "strict")
    loose = ingest.ingest(blocks(9), wider, tmp_path / "loose")

    assert strict.digest != loose.digest


@pytest.mark.parametrize(
    ("x", "y", "field", "reason", "found"),
    [
        (np.full((2, 3), np.nan), 1, "x", "not-finite", "nan at [0, 0]"),
        (np.array([[0, 0, 0], [0, 0, 1.5]]), 1, "x", "out-of-range", "1.5 at [1, 2]"),
        (np.zeros((3, 2)), 1, "x", "wrong-shape", "shape (3, 2)"),
        ([[0, 0, 0], [0, 0]], 1, "x", "wrong-type", None),
        ([[0, 0, 0], [0, 0, "a"]], 1, "x", "wrong-type", None),
        (np.zeros((2, 3)), 7, "y", "unknown-value", "7"),
        (np.zeros((2, 3)), 0.5, "y", "wrong-type", "0.5"),
        (np.zeros((2, 3)), "one", "y", "wrong-type", "'one'"),
        (np.zeros((2, 3)), None, "y", "wrong-type", "None"),
    ],
)
def test_a_bad_row_is_rejected_with_its_number_field_and_reason(
    tmp_path: Path, x: object, y: object, field: str, reason: str, found: str | None
) -> None:
    good = np.zeros((2, 3))

    data = ingest.ingest([{"x": [good], "y": [0]}, {"x": [good, x, good], "y": [1, y, 2]}], SCHEMA, tmp_path / "data")

    assert data["y"].tolist() == [0, 1, 2]
    assert data.index.rejected == {reason: 1}
    (rejected,) = rejects(tmp_path / "data")
    assert (rejected["row"], rejected["field"], rejected["reason"]) == (2, field, reason)
    assert found is None or rejected["found"] == found


def test_a_row_bad_in_two_fields_is_counted_once(tmp_path: Path) -> None:
    data = ingest.ingest([{"x": [np.full((2, 3), 9.0), np.zeros((2, 3))], "y": [9, 0]}], SCHEMA, tmp_path / "data")

    assert data.index.rejected == {"out-of-range": 1}
    assert (data.index.rows_read, len(data)) == (2, 1)


@pytest.mark.parametrize(("dtype", "value"), [("uint8", 256), ("uint8", -1), ("int8", 128), ("float32", 1e39)])
def test_a_value_that_the_dtype_cannot_hold_is_out_of_range(tmp_path: Path, dtype: str, value: float) -> None:
    schema = ingest.Schema(fields=(ingest.Field(name="v", dtype=dtype),))

    data = ingest.ingest([{"v": np.array([1.0, value])}], schema, tmp_path / "data")

    assert data["v"].tolist() == [1]
    assert data.index.rejected == {"out-of-range": 1}


def test_progress_hears_of_every_block(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    bad = {"x": np.full((2, 2, 3), np.inf), "y": [0, 0]}

    ingest.ingest(
        [*blocks(7), bad], SCHEMA, tmp_path / "data", progress=lambda read, rejected: heard.append((read, rejected))
    )

    assert heard == [(7, 0), (9, 2)]


def test_an_empty_source_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ingest.EmptySourceError, match=r"^the source gave no rows"):
        ingest.ingest([], SCHEMA, tmp_path / "data")

    assert list(tmp_path.iterdir()) == []


def test_a_source_of_bad_rows_only_names_the_reasons_and_leaves_nothing(tmp_path: Path) -> None:
    bad = {"x": np.full((4, 2, 3), np.nan), "y": [0] * 4}

    with pytest.raises(ingest.AllRowsRejectedError, match="4 not-finite") as caught:
        ingest.ingest([bad], SCHEMA, tmp_path / "data")

    assert caught.value.rejected == {"not-finite": 4}
    assert list(tmp_path.iterdir()) == []


def test_a_block_without_a_column_is_the_sources_fault(tmp_path: Path) -> None:
    with pytest.raises(ingest.SchemaError, match=r"columns \['x'\], expected \['x', 'y'\]"):
        ingest.ingest([{"x": np.zeros((1, 2, 3))}], SCHEMA, tmp_path / "data")


def test_running_again_opens_what_is_there(tmp_path: Path) -> None:
    first = ingest.ingest(blocks(20), SCHEMA, tmp_path / "data")
    second = ingest.ingest(blocks(20), SCHEMA, tmp_path / "data")

    assert first.digest == second.digest
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_other_content_is_never_overwritten(tmp_path: Path) -> None:
    kept = ingest.ingest(blocks(20), SCHEMA, tmp_path / "data")

    with pytest.raises(ingest.DatasetExistsError, match="already holds the data set sha256:") as caught:
        ingest.ingest(blocks(21), SCHEMA, tmp_path / "data")

    assert kept.digest in caught.value.found
    assert ingest.open(tmp_path / "data").digest == kept.digest


def test_a_killed_writer_leaves_no_data_set_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, numpy as np, ingest\n"
        "def rows():\n"
        "    yield {'v': np.zeros(8)}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "schema = ingest.Schema(fields=(ingest.Field(name='v', dtype='float32'),))\n"
        "ingest.ingest(rows(), schema, sys.argv[1], shard_rows=4)\n"
    )
    root = Path(ingest.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "data")], env=environment, check=False)
    assert killed.returncode == -9
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".data.partial-")

    ingest.ingest(blocks(5), SCHEMA, tmp_path / "data")

    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_csv_cells_that_are_no_numbers_cost_their_row_only(tmp_path: Path) -> None:
    source = tmp_path / "numbers.csv"
    source.write_text("1,2,0\n3,oops,1\n4,5\n6,7,2\nnan,1,1\n")
    schema = ingest.Schema(
        fields=(ingest.Field(name="pair", dtype="float64", shape=(2,)), ingest.Field(name="kind", dtype="int64"))
    )
    rows = ({"pair": block[:, :2], "kind": block[:, 2]} for block in ingest.read_csv(source, columns=3))

    data = ingest.ingest(rows, schema, tmp_path / "data")

    assert data["pair"].tolist() == [[1.0, 2.0], [6.0, 7.0]]
    assert data.index.rejected == {"wrong-type": 1, "wrong-width": 1, "not-finite": 1}
    assert [rejected["row"] for rejected in rejects(tmp_path / "data")] == [1, 2, 4]


def numbers(folder: Path, text: str, *, name: str = "data") -> ingest.Dataset:
    """A CSV file of three columns, ingested."""
    source = folder / "numbers.csv"
    source.write_text(text)
    schema = ingest.Schema(
        fields=(ingest.Field(name="pair", dtype="float64", shape=(2,)), ingest.Field(name="kind", dtype="int64"))
    )
    rows = ({"pair": block[:, :2], "kind": block[:, 2]} for block in ingest.read_csv(source, columns=3))
    return ingest.ingest(rows, schema, folder / name)


def test_a_header_an_empty_cell_a_short_line_and_a_word_are_told_apart(tmp_path: Path) -> None:
    data = numbers(tmp_path, "width,height,kind\n\n1,2,0\n3,,1\n4,5\n6,7,2,9\n1,2,\n1,2,one\na,b,c\n")

    assert [str(rejection) for rejection in data.rejections()] == [
        "row 1: pair: header: width,height,kind",
        "row 3: pair: empty-cell: cell 2 of 3",
        "row 4: pair: wrong-width: 2 cells, expected 3: 4,5",
        "row 5: pair: wrong-width: 4 cells, expected 3: 6,7,2,9",
        "row 6: kind: empty-cell: cell 3 of 3",
        "row 7: kind: wrong-type: 'one'",
        "row 8: pair: wrong-type: ['a','b']",
    ]
    assert sum(data.index.rejected.values()) == 7


def test_when_no_row_is_good_the_first_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ingest.AllRowsRejectedError,
        match=r"all 4 rows of .* \(1 header, 3 wrong-type\).* row 1: pair: header: a,b,c\. row 2: .*\. row 3: .*'z'",
    ) as caught:
        numbers(tmp_path, "a,b,c\n1,x,1\n1,2,z\n1,2,z\n")

    assert len(caught.value.first) == 3
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("name", ["empty.csv", "empty.csv.gz", "empty.jsonl"])
def test_an_empty_file_is_named_and_not_the_folder_that_was_to_be_made(name: str, tmp_path: Path) -> None:
    source = tmp_path / name
    source.write_bytes(gzip.compress(b"\n") if name.endswith(".gz") else b"\n")
    rows = ingest.read_texts(source) if "jsonl" in name else ingest.read_csv(source, columns=3)

    with pytest.raises(ingest.EmptySourceError, match=rf"^'.*{name}' gave no rows") as caught:
        ingest.ingest(({"x": [row], "y": [0]} for row in rows), SCHEMA, tmp_path / "internal")

    assert caught.value.source == source
    assert "internal" not in str(caught.value)


def test_csv_bytes_that_are_no_text_cost_their_row_only(tmp_path: Path) -> None:
    source = tmp_path / "numbers.csv"
    source.write_bytes(b"1,2,0\n3,\x80\x05,1\n6,7,2\n")

    (block,) = ingest.read_csv(source, columns=3)

    assert [block[row].tolist() for row in (0, 2)] == [[1.0, 2.0, 0.0], [6.0, 7.0, 2.0]]
    assert isinstance(block[1][1], str)


def test_a_missing_source_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ingest.SourceNotFoundError, match=r"nowhere\.csv"):
        next(ingest.read_csv(tmp_path / "nowhere.csv", columns=3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "string"}, "dtype 'string'"),
        ({"shape": (0,)}, "at least 1"),
        ({"low": 2, "high": 1}, "low 2 above high 1"),
        ({"allowed": ()}, "allows no value"),
        ({"name": ""}, "empty name"),
    ],
)
def test_a_field_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ingest.SchemaError, match=message):
        ingest.Field(**{"name": "v", "dtype": "uint8", **change})  # type: ignore[arg-type]


def test_a_label_must_be_a_field() -> None:
    with pytest.raises(ingest.SchemaError, match="the label 'z' is no field; the fields are x, y"):
        ingest.Schema(fields=SCHEMA.fields, label="z")
