"""Whatever becomes of its answer, a command ends in a line or silence; the other packages test their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
_TABLE = """
import benchmarks.__main__ as command
command._measure = lambda options, command: print("a table", flush=True)
raise SystemExit(command.main(["ckpt", "--json", "figures.json"]))
"""
COMMANDS = {
    "benchmarks": ["-c", _TABLE],  # measuring takes minutes
    "flows": ["-m", "flows", "status"],
    "serving": ["-m", "serving", "fleet", "--model", "m@champion", "--from", ".", "--port", "0"],
}


@pytest.mark.parametrize("package", COMMANDS)
def test_an_answer_that_cannot_be_written_is_told_and_a_reader_that_has_gone_is_left_alone(
    package: str, tmp_path: Path
) -> None:
    command = [sys.executable, *COMMANDS[package]]
    environment = os.environ | {"TREERING_HOME": str(tmp_path), "TREERING_TOKEN": "t" * 40}
    read, write = os.pipe()
    os.close(read)

    with open("/dev/full", "w") as full:
        gone, unwritten = (
            subprocess.run(
                command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env=environment, cwd=REPOSITORY
            )
            for stdout in (write, full)
        )
    os.close(write)

    assert (gone.returncode, gone.stderr) == (1, "")
    assert unwritten.returncode == 1
    assert unwritten.stderr == "OSError: [Errno 28] No space left on device: the answer was not written\n"
