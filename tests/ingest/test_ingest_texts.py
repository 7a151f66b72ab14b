"""Files of labelled texts: three forms of the same rows, and what is wrong with a file said at once."""

import gzip
from pathlib import Path

import pytest

from ingest import SchemaError, SourceNotFoundError, read_texts

FORMS = {
    "rows.jsonl": '{"text": "Draw, then show.", "label": "a"}\n\n{"label": "b", "text": "Zwölf", "more": 1}\n',
    "rows.csv": 'text,label\n"Draw, then show.",a\nZwölf,b\n',
    "rows.tsv": "label\ttext\na\tDraw, then show.\nb\tZwölf\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_three_forms_give_the_same_pairs(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FORMS[name], "utf-8")
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(FORMS[name].encode()))

    for file in (name, f"{name}.gz"):
        assert list(read_texts(tmp_path / file)) == [("Draw, then show.", "a"), ("Zwölf", "b")]


def test_a_line_that_cannot_be_read_stays_in_place(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"text": "one", "label": "a"}\n{"text": "tw\n["three"]\n{"text": 4}\n')
    table = tmp_path / "rows.csv"
    table.write_text("text,label\none\n")

    assert list(read_texts(lines)) == [("one", "a"), (None, None), (None, None), (4, None)]
    assert list(read_texts(table)) == [("one", None)]


def test_a_file_without_the_columns_is_told_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text("sentence\tlabel\n")

    with pytest.raises(
        SchemaError, match=r"has the columns \['sentence', 'label'\], expected text and label"
    ) as caught:
        list(read_texts(tmp_path / "rows.tsv"))
    assert r"'text\tlabel'" in str(caught.value)


def test_a_file_of_another_kind_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"")

    with pytest.raises(SchemaError, match=r"kind '\.parquet', expected \.jsonl, \.csv, \.tsv"):
        list(read_texts(tmp_path / "rows.parquet"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"nowhere\.tsv"):
        list(read_texts(tmp_path / "nowhere.tsv"))


def test_bytes_that_are_no_text_cost_their_own_row(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbftext,label\r\nZw\xc3\xb6lf,a\r\nZw\xf6lf,b\r\n")
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "Zw\xf6lf", "label": "a"}\n{"text": "\\ud800", "label": "b"}\n')

    assert list(read_texts(tmp_path / "rows.csv")) == [("Zwölf", "a"), (None, "b")]
    assert list(read_texts(tmp_path / "rows.jsonl")) == [(None, "a"), (None, "b")]


def test_a_quote_that_does_not_end_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('text,label\none,a\n"' + "two, " * 40_000)

    with pytest.raises(SchemaError, match=r"cannot be read beyond line 2: field larger than field limit"):
        list(read_texts(tmp_path / "rows.csv"))
