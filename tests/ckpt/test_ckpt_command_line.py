"""The command line says what happened in words, in JSON and in its exit code."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ckpt
from ckpt.__main__ import main


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    ckpt.save({"w": torch.zeros(1000)}, tmp_path / "old")
    ckpt.save({"w": torch.ones(1000)}, tmp_path / "new")
    return tmp_path


def test_a_delta_is_made_and_applied(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(pair / "old"), str(pair / "new"), str(pair / "d"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert main(["apply", str(pair / "old"), str(pair / "d"), str(pair / "made")]) == 0

    assert facts["target_root"] == ckpt.read_manifest(pair / "made").root
    assert facts["target_root"] in capsys.readouterr().out


def test_verify_exits_with_1_on_a_fault_and_lists_it(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next((pair / "old").glob("weights-*"))
    file.write_bytes(file.read_bytes()[:-1] + b"\1")

    assert main(["verify", str(pair / "new")]) == 0
    assert main(["verify", str(pair / "old")]) == 1
    assert main(["verify", str(pair / "old"), "--json"]) == 1

    *_, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["faults"][0]["error"] == "CorruptChunkError"


def test_a_file_is_adopted_and_its_root_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"w": torch.ones(4)}, file)

    assert main(["adopt", str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert main(["adopt", str(file), "--out", str(tmp_path / "copy")]) == 0

    assert facts["root"] == ckpt.read_manifest(file).root
    assert facts["root"] in capsys.readouterr().out
    assert main(["verify", str(file)]) == main(["verify", str(tmp_path / "copy")]) == 0


def test_long_work_draws_its_progress_on_a_terminal_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"v": torch.ones(1 << 20), "w": torch.ones(3 << 20)}, file)

    main(["adopt", str(file)])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    main(["adopt", str(file)])

    *shown, end = capsys.readouterr().err.split("\r")
    assert shown == ["", f"{'█' * 10}{'░' * 30}  25% 4 of 16 MiB"]
    assert end == f"{'█' * 40} 100% 16 of 16 MiB\n"


def test_inspect_tells_root_and_contents(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(pair / "old")]) == 0

    shown = capsys.readouterr().out
    assert ckpt.read_manifest(pair / "old").root in shown
    assert "4,000" in shown


@pytest.mark.parametrize("arguments", [["inspect", "nowhere"], ["verify", "nowhere"], ["apply", "a", "b", "c"]])
def test_what_is_missing_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert "NotACheckpointError" in capsys.readouterr().err
