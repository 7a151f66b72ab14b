"""What stands in a folder is opened only when it is a regular file of the right size; nothing blocks, nothing mixes."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import ckpt
from ckpt.disk.folder import reading
from ckpt.saving import writer

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "note").write_text("hello")
    ckpt.save({"w": torch.ones(9)}, tmp_path / "c", attachments={"docs/note.txt": tmp_path / "note"})
    return tmp_path / "c"


def test_every_missing_file_is_listed_and_foreign_ones_are_told(tmp_path: Path) -> None:
    ckpt.save({"a": torch.ones(9), "b": torch.ones(9)}, tmp_path / "c", shard_bytes=1)
    for file in (tmp_path / "c").glob("weights-*"):
        file.unlink()
    (tmp_path / "c" / ".env").write_text("secret")

    report = ckpt.verify(tmp_path / "c")

    assert len(report.faults) == 2
    assert report.foreign == (".env",)


def test_a_checkpoint_larger_than_memory_opens(tmp_path: Path) -> None:
    """A hole of 1 TiB costs nothing to map: pages are read when they are touched."""
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)

    size = reading(tmp_path, lambda opened: len(opened.view("sparse", size_bytes=1 << 40)), expected="sparse")

    assert size == 1 << 40


_WRITER = """
import sys, torch, ckpt
from pathlib import Path
path, value = Path(sys.argv[1]), float(sys.argv[2])
while not (path.parent / "stop").exists():
    ckpt.save({"w": torch.full((3000,), value), "v": torch.full((5,), value)}, path, overwrite=True)
"""


def test_two_writers_and_a_reader_never_see_half_a_state(tmp_path: Path) -> None:
    path = tmp_path / "c"
    ckpt.save({"w": torch.full((3000,), 1.0), "v": torch.full((5,), 1.0)}, path)
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(value)]) for value in (1, 2)]
    seen: set[tuple[float, float]] = set()
    try:
        end = time.monotonic() + 60
        reads = 0
        while (reads < 300 and time.monotonic() < end) or {(1.0, 1.0), (2.0, 2.0)} - seen:
            state = ckpt.load(path, verify="sha256")
            seen.add((state["w"].unique().item(), state["v"].unique().item()))
            reads += 1
            assert ckpt.verify(path).ok
    finally:
        (tmp_path / "stop").touch()
        codes = [writer.wait(timeout=60) for writer in writers]

    assert codes == [0, 0]
    assert seen == {(1.0, 1.0), (2.0, 2.0)}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c", "stop"]


_LIMITED = """
import resource, sys, torch, ckpt
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    ckpt.save({"w": torch.full((100_000,), 2.0)}, sys.argv[1], overwrite=True)
except OSError as error:
    sys.exit(error.errno)
"""


@pytest.mark.parametrize("limit_bytes", [0, 300_000])
def test_a_disk_that_is_full_leaves_the_old_state(limit_bytes: int, tmp_path: Path) -> None:
    old = ckpt.save({"w": torch.full((100_000,), 1.0)}, tmp_path / "c").root
    arguments = [sys.executable, "-B", "-c", _LIMITED, str(tmp_path / "c"), str(limit_bytes)]

    result = subprocess.run(arguments, check=False, timeout=60)

    assert result.returncode == 27  # EFBIG, raised as ENOSPC would be
    assert ckpt.verify(tmp_path / "c", root=old).ok
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


_CLOSED = """
import os, sys, torch, ckpt
if os.getuid() == 0:
    os.setuid(65534)  # root may write anywhere
try:
    ckpt.save({"w": torch.ones(1)}, sys.argv[1])
except PermissionError as error:
    sys.exit(7 if "closed" in str(error) else 8)
"""


def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    for parent in (tmp_path, *tmp_path.parents[:-2]):
        parent.chmod(0o755)

    result = subprocess.run([sys.executable, "-c", _CLOSED, str(tmp_path / "closed" / "c")], check=False, timeout=60)

    assert result.returncode == 7
    assert list((tmp_path / "closed").iterdir()) == []


_BARRED = """
import os, sys, torch, ckpt
os.chown(sys.argv[1], 65534, 65534)
if os.getuid() == 0:
    os.setuid(65534)
for look in (lambda: ckpt.latest(sys.argv[1]), lambda: ckpt.verify(sys.argv[1] + "/step-1")):
    try:
        print(look())
    except PermissionError as error:
        print(error.filename)
"""


def test_what_may_not_be_looked_into_is_said_and_not_passed_over(tmp_path: Path) -> None:
    """Else an older checkpoint would seem to be the latest, and files of others would be removed with a checkpoint."""
    run, barred = tmp_path / "run", tmp_path / "run" / "step-1" / "theirs"
    for step in (1, 2):
        ckpt.save({"w": torch.ones(1)}, run / f"step-{step}")
    barred.mkdir(mode=0o000)
    (run / "step-2").chmod(0o000)
    for parent in (tmp_path, *tmp_path.parents[:-2]):
        parent.chmod(0o755)

    result = subprocess.run([sys.executable, "-c", _BARRED, str(run)], check=True, timeout=60, stdout=subprocess.PIPE)

    assert result.stdout.decode().splitlines() == [str(run / "step-2" / "manifest.pb"), str(barred)]


def test_a_folder_that_a_server_removed_meanwhile_is_looked_at_again(tmp_path: Path) -> None:
    """Files of it are stale then, which is an error of the system."""
    for name in ("c", "new"):
        ckpt.save({"w": torch.ones(1)}, tmp_path / name)
    errors = [OSError(errno.ESTALE, os.strerror(errno.ESTALE))]

    def read(_: object) -> str:
        if errors:
            (tmp_path / "c").rename(tmp_path / "old")
            (tmp_path / "new").rename(tmp_path / "c")
            raise errors.pop()
        return "read"

    assert reading(tmp_path / "c", read, expected="manifest.pb") == "read"


def test_a_leftover_that_is_no_folder_does_not_stop_a_writer(tmp_path: Path) -> None:
    (tmp_path / ".c.01234567.saving").write_text("not ours")
    (tmp_path / ".c.89abcdef.saving").symlink_to(tmp_path)

    ckpt.save({"w": torch.ones(1)}, tmp_path / "c")

    assert ckpt.verify(tmp_path / "c").ok
    assert (tmp_path / ".c.01234567.saving").exists()


def test_a_folder_that_another_writer_replaces_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "c", tmp_path / "other"
    for value, folder in enumerate((path, other)):
        ckpt.save({"w": torch.full((3,), float(value))}, folder)
    read = writer.read_manifest

    def read_and_lose(folder: Path) -> ckpt.Manifest:
        manifest = read(folder)
        if other.exists():
            path.rename(tmp_path / "old")
            other.rename(path)
        return manifest

    monkeypatch.setattr(writer, "read_manifest", read_and_lose)

    assert writer.foreign(path) is None
