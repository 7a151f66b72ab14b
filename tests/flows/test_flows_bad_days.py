"""A machine without room: every command says what is missing, and starts nothing.

What happens when room runs out in the middle of a run, or the clock is set, is in ``soak_bad_days.py``.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
FLOWS = (sys.executable, "-m", "flows")
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A folder to mount on; unmounted afterwards."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def run(*command: str, home: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"TREERING_HOME": str(home)}
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@needs_root
@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_disk_without_room_is_named_before_anything_is_started(command: str, mounted: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mounted)], check=True)

    done = run(*FLOWS, command, "--ports", "free", home=mounted)

    assert done.returncode == 1
    assert f"the disk of '{mounted}' has 8 MB left: expected at least 268 MB" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(mounted.glob("stack/*.process.json"))


@needs_root
@pytest.mark.parametrize("command", ["up", "demo", "down", "status"])
def test_a_state_folder_that_cannot_be_written_is_named(command: str, mounted: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(mounted)], check=True)

    done = run(*FLOWS, command, home=mounted / "state")

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    if command != "status":
        assert "Read-only file system" in done.stderr
        assert "set TREERING_HOME" in done.stderr


def test_a_shell_with_a_gigabyte_is_told_so(tmp_path: Path) -> None:
    done = run("bash", "-c", f"ulimit -v 1000000; {' '.join(FLOWS)} up --ports free", home=tmp_path)

    assert done.returncode == 1
    assert "allows 1,024 MB of memory: expected 2,147 MB or more" in done.stderr
    assert not list(tmp_path.glob("stack/*.process.json"))


@pytest.mark.skipif(not os.access(MEMORY_GROUPS, os.W_OK), reason="no memory control group to be made here")
def test_a_container_with_a_gigabyte_is_told_so(tmp_path: Path) -> None:
    group = MEMORY_GROUPS / f"treering-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(1 << 30))
        join = f"echo $$ > {group}/cgroup.procs; exec {' '.join(FLOWS)} up --ports free"

        done = run("bash", "-c", join, home=tmp_path)

        assert done.returncode == 1
        assert "allows 1,074 MB of memory" in done.stderr
    finally:
        group.rmdir()
