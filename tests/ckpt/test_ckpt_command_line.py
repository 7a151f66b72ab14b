"""The command line says what happened in words, in JSON and in its exit code."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import ckpt
from ckpt.__main__ import main
from ckpt.signatures.keys import private_key_of
from tests.ckpt.pieces import rows, save_in_pieces


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


def test_deltas_are_turned_round_and_put_together(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, delta, back, both = (str(pair / name) for name in ("old", "d", "back", "both"))
    ckpt.diff(old, pair / "new", delta)

    assert main(["invert", delta, back, "--base", old, "--json"]) == 0
    inverted = json.loads(capsys.readouterr().out)
    assert main(["squash", delta, back, both, "--base", old]) == 0
    assert main(["squash", back, delta, str(pair / "x"), "--base", old]) == 1
    assert main(["invert", delta, str(pair / "x")]) == 1

    said = capsys.readouterr()
    assert inverted["target_root"] == ckpt.read_manifest(old).root
    assert f"{inverted['target_root']} → {inverted['target_root']}" in said.out
    wrong, lacking = said.err.splitlines()
    assert wrong.startswith("WrongBaseError: ")
    assert lacking.startswith("BaseNeededError: ")
    assert lacking.endswith("(--base on the command line).")


def test_a_delta_is_called_one_where_a_checkpoint_is_expected_and_the_other_way(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ckpt.diff(pair / "old", pair / "new", pair / "d")

    assert main(["diff", str(pair / "d"), str(pair / "new"), str(pair / "made")]) == 1
    assert (
        "not a checkpoint: expected a folder with manifest.pb, found a delta; 'ckpt apply'" in capsys.readouterr().err
    )
    assert main(["apply", str(pair / "old"), str(pair / "new"), str(pair / "made")]) == 1
    assert "not a delta: expected a folder with delta.pb, found a checkpoint" in capsys.readouterr().err


def test_a_signed_delta_is_called_one_too(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = ckpt.keygen(pair / "k.pem").private
    ckpt.sign(pair / "new", key)
    ckpt.diff(pair / "old", pair / "new", pair / "d", sign=key)

    assert main(["diff", str(pair / "d"), str(pair / "new"), str(pair / "made")]) == 1

    assert "found a delta; 'ckpt apply' makes a checkpoint of it" in capsys.readouterr().err


def test_a_file_where_a_folder_is_expected_is_told_what_to_do(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pair / "old.pt").write_bytes(b"")
    (weights,) = (pair / "new").glob("weights-*")

    assert main(["inspect", str(pair / "old.pt")]) == main(["verify", str(weights)]) == 1

    converted, named = capsys.readouterr().err.splitlines()
    assert converted.endswith(
        "found a file. Check the path; 'python -m ckpt convert' makes a checkpoint of a .pt or .npz file."
    )
    assert named.endswith(f"It is a file of the checkpoint '{pair / 'new'}'; name that.")


def test_a_folder_that_is_there_is_not_overwritten_and_the_way_out_exists(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ckpt.diff(pair / "old", pair / "new", pair / "d")

    assert main(["apply", str(pair / "old"), str(pair / "d"), str(pair / "old")]) == 1

    assert "exists already; expected a new path. Choose another, or move it away" in capsys.readouterr().err


def test_verify_exits_with_1_on_a_fault_and_lists_it(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next((pair / "old").glob("weights-*"))
    file.write_bytes(file.read_bytes()[:-1] + b"\1")

    assert main(["verify", str(pair / "new")]) == 0
    assert main(["verify", str(pair / "old")]) == 1
    assert main(["verify", str(pair / "old"), "--json"]) == 1

    *_, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["faults"][0]["error"] == "CorruptChunkError"


def test_what_a_file_says_stays_on_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and metadata may hold what clears a terminal, or a line that looks like ours."""
    evil = "\x1b[2J\u202e\nc: 8 bytes match by sha256"
    ckpt.save({evil: torch.ones(2)}, tmp_path / "c", metadata={"k": evil})
    file = next((tmp_path / "c").glob("weights-*"))

    assert main(["inspect", str(tmp_path / "c")]) == 0
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    assert main(["verify", str(tmp_path / "c")]) == 1
    file.write_bytes(b"")
    assert main(["diff", str(tmp_path / "c"), str(tmp_path / "c"), str(tmp_path / "d")]) == 1

    said = "".join(capsys.readouterr())
    assert not set(said) & {"\x1b", "\u202e"}
    assert [line for line in said.splitlines() if line.startswith("c: ")] == []
    assert r"k=\x1b[2J\u202e\nc: 8 bytes match" in said


def test_pieces_are_counted_and_made_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_in_pieces({"w": torch.arange(6.0)}, tmp_path / "c", {"w": rows((6,), 2, 4)})

    assert main(["inspect", str(tmp_path / "c"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pieces"] == 3
    assert main(["consolidate", str(tmp_path / "c"), str(tmp_path / "whole")]) == 0

    root = ckpt.save({"w": torch.arange(6.0)}, tmp_path / "plain").root
    assert root in capsys.readouterr().out
    assert root == ckpt.read_manifest(tmp_path / "whole").root


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


def test_what_is_signed_is_verified_and_what_is_not_is_refused(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> tuple[int, dict[str, object]]:
        code = main([*map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    new, delta = pair / "new", pair / "d"
    _, keys = run("keygen", pair / "k.pem")
    public, other = pair / "k.pub.pem", ckpt.keygen(pair / "other.pem").public
    _, said = run("sign", new, pair / "k.pem", "--line", "mnist", "--not-after", "9000-01-01")
    run("diff", pair / "old", new, delta)

    assert (said["key_id"], said["line"]) == (keys["key_id"], "mnist")
    assert said["not_after"] == "9000-01-01T00:00:00+00:00"
    code, report = run("verify", new, "--trust", public, "--line", "mnist")
    assert (code, report["accepted"]) == (0, said)
    for refused, error in (
        (["verify", new, "--trust", other], "UntrustedKeyError"),
        (["verify", new, "--trust", public, "--line", "search"], "WrongLineError"),
        (["verify", pair / "old", "--trust", other, "--trust", public], "UnsignedError"),
    ):
        code, report = run(*refused)
        assert (code, report["ok"], report["accepted"]) == (1, False, None)
        assert [fault["error"] for fault in report["faults"]] == [error]  # type: ignore[attr-defined]
    assert run("apply", pair / "old", delta, pair / "made", "--trust", public)[0] == 1
    run("sign", delta, pair / "k.pem")
    assert run("apply", pair / "old", delta, pair / "made", "--trust", public)[0] == 0
    assert run("verify", pair / "made", "--trust", public)[0] == 0
    assert run("inspect", new)[1]["claims"] == [said]


def test_a_key_is_rotated_on_the_command_line(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pair / "secret").write_text("correct horse\n")
    locked = ["--passphrase-file", str(pair / "secret")]
    for name, more in (("one", []), ("two", locked)):
        assert main(["keygen", str(pair / f"{name}.pem"), *more]) == 0
    one, two = pair / "one.pub.pem", pair / "two.pub.pem"
    assert main(["sign", str(pair / "new"), str(pair / "one.pem")]) == 0
    assert main(["sign", str(pair / "new"), str(pair / "two.pem"), "--replaces", str(one)]) == 1
    assert main(["sign", str(pair / "new"), str(pair / "two.pem"), "--replaces", str(one), *locked]) == 0

    assert main(["verify", str(pair / "new"), "--trust", str(one)]) == 1
    assert main(["verify", str(pair / "new"), "--trust", str(two)]) == 0
    assert main(["inspect", str(pair / "new")]) == 0
    assert "; not verified" in capsys.readouterr().out
    assert main(["unsign", str(pair / "new"), str(one), str(two)]) == 0
    assert "1 signature(s) taken out" in capsys.readouterr().out
    assert main(["verify", str(pair / "new"), "--trust", str(two)]) == 1


def test_a_call_that_makes_no_sense_exits_with_2(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    public = ckpt.keygen(pair / "k.pem").public

    assert main(["verify", str(pair / "new"), "--level", "crc32", "--trust", str(public)]) == 2
    assert "a signature vouches for no CRC" in capsys.readouterr().err
    assert main(["verify", str(pair / "new"), "--line", "mnist"]) == 2
    assert main(["sign", str(pair / "new"), str(pair / "k.pem"), "--not-after", "2001-01-01"]) == 2
    with pytest.raises(SystemExit) as caught:
        main(["sign", str(pair / "new"), str(pair / "k.pem"), "--not-after", "soon"])
    assert caught.value.code == 2


@pytest.mark.parametrize("arguments", [["inspect", "nowhere"], ["verify", "nowhere"], ["apply", "a", "b", "c"]])
def test_what_is_missing_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert "NotACheckpointError" in capsys.readouterr().err


def test_verifying_tells_how_far_it_is(tmp_path: Path) -> None:
    ckpt.save({"w": torch.rand(12_000_000), "b": torch.rand(3)}, tmp_path / "c")
    told: list[tuple[int, int]] = []

    report = ckpt.verify(tmp_path / "c", progress=lambda done, total: told.append((done, total)))

    assert report.ok
    assert len(told) >= 3
    assert told == sorted(set(told))
    assert told[-1] == (48_000_012, 48_000_012)


def command(*arguments: object, **more: Any) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "ckpt", *map(str, arguments)]
    return subprocess.Popen(line, stderr=subprocess.PIPE, text=True, **{"stdout": subprocess.PIPE, **more})


def test_what_an_encoding_lacks_is_spelt_out(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"M\xc3\xa4rz \xff")
    ckpt.save({"w": torch.ones(2)}, path, metadata={"wer": "Jürgen"})
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}

    said, _ = command("inspect", path, env=ascii_only).communicate()
    _, refused = command("sign", path, tmp_path / "né.pem", env=ascii_only).communicate()
    default, _ = command("verify", path).communicate()

    assert "M\\xe4rz \\udcff" in said
    assert "wer=J\\xfcrgen" in said
    assert "n\\xe9.pem" in refused
    assert "März \\udcff: 8 bytes match" in default


def test_a_reader_that_has_gone_ends_the_command_in_silence(pair: Path) -> None:
    read, write = os.pipe()
    os.close(read)

    gone = command("inspect", pair / "old", stdout=write)
    os.close(write)
    _, error = gone.communicate()

    assert (gone.returncode, error) == (1, "")


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_an_answer_that_a_full_disk_does_not_take_is_told_in_one_line(option: list[str], pair: Path) -> None:
    with open("/dev/full", "w") as full:
        done = command("inspect", pair / "old", *option, stdout=full)
        _, error = done.communicate()

    assert done.returncode == 1
    assert error == "OSError: [Errno 28] No space left on device: the answer was not written\n"


def test_an_interrupted_command_says_so_in_one_line(pair: Path) -> None:
    """It waits for its passphrase, so that it is known where it is."""
    os.mkfifo(pair / "pass")
    waiting = command("keygen", pair / "k.pem", "--passphrase-file", pair / "pass")

    with open(pair / "pass", "w"):  # until the command opens it, too
        waiting.send_signal(signal.SIGINT)
        _, error = waiting.communicate()

    assert (waiting.returncode, error) == (130, "KeyboardInterrupt: stopped before its end\n")
    assert not (pair / "k.pem").exists()


def test_an_empty_path_is_not_the_folder_one_is_in(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        ckpt.save({"n": step}, pair / "runs" / f"step-{step}")
    monkeypatch.chdir(pair / "runs")

    for arguments in (["keep", "", "--newest", "1"], ["verify", ""], ["verify", "step-1", "--trust", ""]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2

    assert sorted(os.listdir()) == ["step-1", "step-2"]


def test_a_time_that_is_none_is_told_with_an_example(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sign", str(pair / "new"), "k.pem", "--not-after", "soon"])

    assert "--not-after: expected a time such as 2027-12-31T12:00, found 'soon'" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])

    assert (caught.value.code, capsys.readouterr().out) == (0, "ckpt 0.1.0, format 1\n")


def test_verify_tells_what_is_no_part_of_the_checkpoint(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pair / "new" / "note\n.txt").write_text("")

    assert main(["verify", str(pair / "new")]) == 0
    assert capsys.readouterr().out.endswith("\nno part of it: note\\n.txt\n")
    assert main(["verify", str(pair / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["foreign"] == ["note\n.txt"]


@pytest.mark.parametrize("ends", ["secret", "secret\n", "secret\r\n", "secret\rmore"])
def test_a_passphrase_ends_with_its_line(ends: str, tmp_path: Path) -> None:
    (tmp_path / "pass").write_bytes(ends.encode())

    assert main(["keygen", str(tmp_path / "k.pem"), "--passphrase-file", str(tmp_path / "pass")]) == 0

    assert private_key_of(tmp_path / "k.pem", passphrase=b"secret")


def test_an_empty_passphrase_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pass").write_text("\nsecret")

    assert main(["keygen", str(tmp_path / "k.pem"), "--passphrase-file", str(tmp_path / "pass")]) == 2

    assert "is empty; expected a passphrase there" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["pass"]


@pytest.mark.parametrize("arguments", [["verify"], ["inspect", "a", "b"], ["keep", "a", "--newest", "soon"], ["tell"]])
def test_a_call_that_makes_no_sense_is_told_to_machines_in_json(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--json"])

    said = json.loads(capsys.readouterr().out)
    assert caught.value.code == 2
    assert (said["ok"], said["error"]) == (False, "UsageError")
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f": error: {said['message']}")


def test_an_option_is_given_in_full(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(pair / "old"), "--lev", "crc32"])

    assert caught.value.code == 2
    assert "unrecognized arguments: --lev crc32" in capsys.readouterr().err


def test_latest_tells_machines_whether_there_is_one(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["latest", str(pair), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"ok": False, "path": None}
    ckpt.save({"n": 1}, pair / "step-1")
    assert main(["latest", str(pair), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "path": str(pair / "step-1")}


def test_repair_tells_what_it_restored_and_how_a_manifest_is(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(pair / "old", pair / "copy")
    (weights,) = (pair / "old").glob("weights-*")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    repair = ["repair", str(pair / "old"), "--from", str(pair / "copy")]

    assert main(repair) == 0
    assert capsys.readouterr().out.startswith(f"restored {weights.name}: 4000 bytes\n")
    (pair / "old" / "manifest.pb").unlink()
    assert main(repair) == 1
    assert (
        "A manifest is restored only for what you expect: root=, trust= (--root, --trust)." in capsys.readouterr().err
    )
    assert main([*repair, "--root", ckpt.read_manifest(pair / "copy").root, "--json"]) == 0
    (restored,) = json.loads(capsys.readouterr().out)["restored"]
    assert restored == f"manifest.pb: {(pair / 'copy' / 'manifest.pb').stat().st_size} bytes"
    assert main(repair) == 0
    assert "restored" not in capsys.readouterr().out


def test_help_into_a_pipe_that_is_closed_ends_in_silence() -> None:
    read, write = os.pipe()
    os.close(read)

    gone = command("--help", stdout=write)
    os.close(write)

    assert gone.communicate()[1] == ""
