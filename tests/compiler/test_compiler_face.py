"""The package's face, its command line and its generated code are what they are said to be."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import compiler
from compiler.__main__ import main
from compiler.backends import BACKENDS, find_backend
from compiler.operators import ATEN, find


def test_the_exported_names_are_these() -> None:
    assert compiler.__all__ == sorted(compiler.__all__)
    assert {"compile", "load", "Program", "Runner", "Dim", "TensorSpec", "ConstantSpec", "VerificationError"} <= set(
        compiler.__all__
    )
    assert all(hasattr(compiler, name) for name in compiler.__all__)
    assert len(compiler.__all__) == 32


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_of_the_table_can_be_imported(name: str) -> None:
    backend = find_backend(name)

    assert isinstance(backend.requirement, str)
    assert isinstance(backend.build_key(requirement=backend.requirement), str)


@pytest.mark.parametrize("name", sorted(ATEN))
def test_every_operator_of_the_table_exists_and_is_pure(name: str) -> None:
    operator = find(f"aten.{name}")

    assert operator is not None
    assert not operator.function._schema.is_mutable


def test_explain_says_what_was_folded(
    eager_program: compiler.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = eager_program.save(tmp_path / "program")

    code = main(["explain", str(folder)])

    text = capsys.readouterr().out
    assert code == 0
    assert "fold_batchnorm: 5 changes, 0 refused" in text
    assert "block1.bn1: folded into block1.conv1" in text
    assert "verification: 40 comparisons with float64" in text


def test_explain_as_json_holds_every_figure(
    eager_program: compiler.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["explain", str(eager_program.save(tmp_path / "program")), "--json"])

    values = json.loads(capsys.readouterr().out)

    assert values["digest"] == eager_program.digest
    assert len(values["figures"]) == len(eager_program.report.figures)
    assert values["dims"] == {"batch": [1, 16]}


@pytest.mark.parametrize("form", ["text", "dot"])
def test_explain_shows_the_graph_before_the_passes_and_after_them(
    eager_program: compiler.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    folder = eager_program.save(tmp_path / "program")

    assert main(["explain", str(folder), "--graph", form]) == 0

    said = capsys.readouterr().out
    before, after = said.split("# after the passes\n" if form == "text" else "digraph program {")
    assert before.startswith("# before the passes\n" if form == "text" else "digraph captured {")
    assert before.count("batch_norm_legit_no_training") == 5
    assert "batch_norm" not in after
    assert after == (eager_program.text() if form == "text" else eager_program.dot().partition("{")[2])


def test_a_program_without_the_graph_before_the_passes_shows_the_other(
    eager_program: compiler.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = replace(eager_program, report=replace(eager_program.report, captured=None))

    main(["explain", str(old.save(tmp_path / "program")), "--graph", "dot"])

    assert capsys.readouterr().out == eager_program.dot()


def test_explain_of_something_else_fails_with_the_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.pb").write_bytes(b"PK\x03\x04 not a program")

    assert main(["explain", str(tmp_path)]) == 1
    assert main(["explain", str(tmp_path / "absent")]) == 1

    said = capsys.readouterr().err
    assert "InvalidProgramError: invalid program at header.magic" in said
    assert f"no compiled program in '{tmp_path / 'absent'}': expected program.pb in it" in said
    assert "Errno" not in said


def test_a_report_that_a_full_disk_does_not_take_is_told_in_one_line(
    eager_program: compiler.Program, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "compiler", "explain", str(eager_program.save(tmp_path / "program"))]

    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "OSError: [Errno 28] No space left on device: the answer was not written\n"


def test_explain_takes_a_checkpoint_that_carries_its_program(
    eager_program: compiler.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eager_program.save(tmp_path / "checkpoint" / "program")

    assert main(["explain", str(tmp_path / "checkpoint")]) == 0

    assert f"program {eager_program.digest}" in capsys.readouterr().out
