"""What the ingest flow says of a user's rows."""

import logging
from pathlib import Path

import pytest

from flows.ingest import NAMED, ingest


def test_the_first_rejected_rows_are_named_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TREERING_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("flows.ingest.get_run_logger", lambda: logging.getLogger("run"))
    good = ",".join(["1.0"] * 13) + ",2\n"
    (tmp_path / "wine.csv").write_text(good + "a,header\n" + good + good.replace("1.0", "", 1) + "1,2\n" * NAMED)

    done = ingest.fn("recipes.wine", str(tmp_path / "wine.csv"))

    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said[:2] == [
        "rejected row 2: measurements: wrong-width: 2 cells, expected 14: a,header",
        "rejected row 4: measurements: empty-cell: cell 1 of 14",
    ]
    assert said[NAMED:] == [f"rejected more: see {done.folder}/rejects.jsonl"]
    assert done.rejected == {"wrong-width": 1 + NAMED, "empty-cell": 1}
