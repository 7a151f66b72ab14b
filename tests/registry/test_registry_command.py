"""The registry's command line: what is typed in an emergency works, or says why not; no refusal looks like success."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ckpt
import registry
from registry.__main__ import main
from registry.ledger import Author, Ledger, Target
from registry.mention import root_meant
from registry.server import Server

NOWHERE = "http://127.0.0.1:9"  # no server: what works here works from the ledger alone
A, B, C = (Target(version=number, root=f"sha256:{number}a{number:062x}") for number in range(1, 4))


def decide(home: Path, *targets: Target, model: str = "m") -> Ledger:
    """A ledger in which the targets went live one after the other."""
    ledger = Ledger(home / "ledger" / f"{model}.jsonl", model=model)
    for target in targets:
        author = Author(actor="tester", reason="because", at=0.0)
        ledger.promote(target, alias="champion", expect=ledger.live("champion"), author=author)
    return ledger


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("TREERING_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def shown_in_mlflow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models whose ledger was to be shown in MLflow, which is away here."""
    models: list[str] = []
    for place in ("registry.sync", "registry.promotion.sync"):
        monkeypatch.setattr(place, lambda name, **_: models.append(name))
    return models


@pytest.mark.parametrize("mention", ["3", "v3", C.root, C.root[:19], f"{C.root[:19]}…", C.root[7:15]])
def test_a_suspect_is_named_by_number_or_by_the_beginning_of_its_root(
    mention: str, home: Path, shown_in_mlflow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = decide(home, A, B, C)

    code = main(["rollback", "m", mention, "--reason", "odd"])

    assert (code, ledger.live("champion"), shown_in_mlflow) == (0, B, ["m"])
    assert "rollback   v3 → v2" in capsys.readouterr().out
    assert main(["clear", "m", mention, "--reason", "looked at"]) == 0
    assert registry.quarantined_roots("m") == {}


@pytest.mark.parametrize("command", ["rollback", "clear"])
@pytest.mark.parametrize("mention", ["4", "garbage", "", "sha256:", "sha256:feed", "5eed", B.root + "0", "1a"])
def test_what_is_no_root_is_refused_and_nothing_is_written(
    command: str, mention: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = decide(home, A, B, C)
    before = ledger.path.read_bytes()

    code = main([command, "m", mention, "--reason", "odd"])

    said = capsys.readouterr()
    assert (code, said.out, ledger.path.read_bytes()) == (1, "", before)
    assert f"UnknownRootError: '{mention}' names no root in the ledger of 'm'" in said.err
    assert f"v1 {A.root[:19]}, v2 {B.root[:19]}, v3 {C.root[:19]}" in said.err


@pytest.mark.parametrize("command", ["rollback", "clear"])
def test_an_unknown_model_gets_no_ledger(command: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "nosuch", "3", "--reason", "odd"]) == 1

    assert "no ledger here" in capsys.readouterr().err
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("call", ["rollback", "clear"])
def test_python_callers_are_refused_alike(call: str, home: Path) -> None:
    server = Server(uri=NOWHERE, home=home)
    calls = {
        "rollback": lambda: registry.rollback("nosuch", suspect=A.root, reason="odd", show=False, server=server),
        "clear": lambda: registry.clear("nosuch", A.root, reason="odd", server=server),
    }

    with pytest.raises(registry.LedgerError, match="Nothing was written"):
        calls[call]()

    assert list(home.iterdir()) == []


def test_a_beginning_that_several_roots_share_is_refused() -> None:
    twin = f"{A.root[:20]}{'f' * 51}"

    with pytest.raises(registry.UnknownRootError, match=r"'sha256:1a00' could be several roots of 'm': v1 .*, v7 v9 "):
        root_meant("sha256:1a00", {A.root: (1,), twin: (7, 9)}, model="m")
    assert root_meant("9", {A.root: (1,), twin: (7, 9)}, model="m") == twin


def test_a_root_that_is_not_quarantined_is_not_cleared(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = decide(home, A, B, C)
    author = Author(actor="tester", reason="because", at=0.0)
    ledger.rollback(alias="champion", suspect=C.root, author=author)
    before = ledger.path.read_bytes()

    assert main(["clear", "m", "2", "--reason", "odd"]) == 1

    assert f"nothing to clear: found v3 {C.root[:19]} under quarantine" in capsys.readouterr().err
    assert ledger.path.read_bytes() == before


def test_a_suspect_that_is_no_longer_live_is_a_recorded_decision(
    home: Path, shown_in_mlflow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = decide(home, A, B, C)

    assert main(["rollback", "m", "1", "--reason", "odd"]) == 0

    assert f"nothing was moved: {A.root[:19]} is not live, v3 is" in capsys.readouterr().out
    assert [entry.action for entry in ledger.entries()] == ["promote"] * 3 + ["nothing"]


def test_a_rollback_that_mlflow_does_not_show_yet_says_that_it_moved(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = decide(home, A, B, C)

    assert main(["rollback", "m", "3", "--reason", "odd"]) == 1

    said = capsys.readouterr().err
    assert "rollback   v3 → v2" in said
    assert "The ledger took this, MLflow shows it later: the MLflow server at" in said
    assert ledger.live("champion") == B


def test_a_rollback_with_nowhere_to_go_is_no_success(
    home: Path, shown_in_mlflow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    decide(home, A)

    assert main(["rollback", "m", "1", "--reason", "odd"]) == 1

    assert "'m' was not rolled back: v1 is live, and no other" in capsys.readouterr().err


def test_a_promotion_that_does_not_say_what_it_replaces_is_told_how(home: Path) -> None:
    ledger = decide(home, A, B, C)
    author = Author(actor="tester", reason="by hand", at=0.0)

    with pytest.raises(
        registry.StaleExpectationError, match=r"version 3 .* is live, expected nothing.*--expect 3"
    ) as e:
        ledger.promote(A, alias="champion", expect=None, author=author)

    assert e.value.facts["live"] == 3
    assert "meanwhile" not in str(e.value)


def test_a_history_fits_the_terminal_and_drops_no_word(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = " ".join(f"figure_{number} is {number}.25 (usually 0.5)" for number in range(12))
    ledger = decide(home, A)
    ledger.promote(B, alias="champion", expect=A, author=Author(actor="tester", reason=reason, at=0.0))

    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["history", "m"]) == 0
        lines = capsys.readouterr().out.splitlines()

        assert columns - 20 < max(map(len, lines)) <= columns
        assert reason in " ".join(line.strip() for line in lines)


def test_without_an_address_it_says_which_variable_to_set(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")

    assert main(["versions", "m"]) == 1

    said = capsys.readouterr().err
    assert "MLFLOW_TRACKING_URI is not set" in said
    assert "python -m flows env" in said
    assert "does not answer" not in said


def publish(server: Server, folder: Path, *, name: str, versions: int) -> list[registry.Version]:
    made = []
    for number in range(1, versions + 1):
        ckpt.save({"w": torch.full((1000,), float(number))}, folder / f"step-{number}")
        made.append(registry.publish(folder / f"step-{number}", name=name, server=server))
    return made


@pytest.mark.integration
def test_previous_never_names_a_quarantined_version(mlflow_server: str, tmp_path: Path) -> None:
    server = Server(uri=mlflow_server, home=tmp_path / "home")
    versions = publish(server, tmp_path, name="back", versions=3)
    for number in (1, 2, 3):
        registry.promote("back", number, expect=number - 1 or None, reason="better", server=server)
    seen = [(server.alias("back", "champion"), server.alias("back", "previous"))]

    for version in versions[:0:-1]:
        registry.rollback("back", suspect=version.root, reason="odd", server=server)
        seen.append((server.alias("back", "champion"), server.alias("back", "previous")))
    registry.clear("back", versions[2].root, reason="looked at", server=server)
    seen.append((server.alias("back", "champion"), server.alias("back", "previous")))

    assert seen == [(3, 2), (2, 1), (1, None), (1, 3)]


@pytest.mark.integration
def test_the_table_of_versions_says_what_is_live_and_what_is_quarantined(
    mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    monkeypatch.setenv("TREERING_HOME", str(tmp_path / "home"))
    first, second, _ = publish(Server.from_environment(), tmp_path, name="table", versions=3)
    registry.promote("table", 1, expect=None, reason="first")
    registry.promote("table", 2, expect=1, reason="better")
    registry.rollback("table", suspect=second.root, reason="odd")

    assert main(["versions", "table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["versions", "table", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)

    assert max(map(len, lines)) <= 80
    assert [line.split()[2] for line in lines[1:3]] == ["live", "quarantined"]
    assert lines[1].endswith(first.root[:19])
    assert [(fact["root"], fact["live"], fact["quarantined"]) for fact in facts[:2]] == [
        (first.root, True, None),
        (second.root, False, "odd"),
    ]


def test_an_answer_that_cannot_be_written_is_told_and_a_reader_that_has_gone_is_left_alone(home: Path) -> None:
    decide(home, A, B)
    command = [sys.executable, "-m", "registry", "history", "m"]
    read, write = os.pipe()
    os.close(read)

    gone = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    with open("/dev/full", "w") as full:
        unwritten = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert (gone.returncode, gone.stderr) == (1, "")
    assert unwritten.returncode == 1
    assert unwritten.stderr == "OSError: [Errno 28] No space left on device: the answer was not written\n"


def test_an_interrupted_command_says_so_in_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "history", interrupted)

    assert main(["history", "m"]) == 130
    assert capsys.readouterr().err == "KeyboardInterrupt: stopped before its end\n"


def test_a_call_that_makes_no_sense_is_told_to_machines_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["promote", "m", "three", "--reason", "odd", "--json"])

    assert caught.value.code == 2
    assert json.loads(capsys.readouterr().out)["error"] == "UsageError"
