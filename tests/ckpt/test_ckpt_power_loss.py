"""After a power loss at any moment a reader finds the old state or the new one, and a call that returned has lasted.

What may be on the disk then is what :mod:`tests.ckpt.power_loss` says; the calls are those that real programs made.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors.torch import save_file

import ckpt
from tests.ckpt.power_loss import Disk, lay_out, may_trace, record, states_after

TRIES = 12  # random states at each moment, beside the least, the most, and each change alone or alone missing

OLD, NEW = ({"w": torch.full((5000,), value), "v": torch.arange(3)} for value in (1.0, 2.0))
_STATES = """
import os, sys, torch, ckpt
folder = sys.argv[1]
new = {"w": torch.full((5000,), 2.0), "v": torch.arange(3)}
"""

pytestmark = pytest.mark.skipif(
    not may_trace(), reason="strace is missing or may not trace: SYSTEM_DEPS=1 make system-deps"
)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of both states, the delta between them, and a key."""
    folder = tmp_path_factory.mktemp("given")
    ckpt.save(OLD, folder / "old")
    ckpt.save(NEW, folder / "new")
    ckpt.diff(folder / "old", folder / "new", folder / "delta")
    ckpt.keygen(folder / "key.pem")
    return folder


def root_at(path: Path, given: Path) -> str:
    """What a reader finds at a path, in a word."""
    if not path.exists():
        return "nothing"
    if not (path / "manifest.pb").exists():
        return "broken: no manifest"
    report = ckpt.verify(path)
    roots = {ckpt.read_manifest(given / name).root: name for name in ("old", "new")}
    if not report.ok or report.foreign:
        return f"broken: {report.faults} {report.foreign}"
    return roots.get(str(report.root), "another root")


def outcomes(
    work: Path, program: str, *arguments: str, look: Callable[[Path], str], tries: int = TRIES
) -> tuple[set[str], set[str]]:
    """What is found when the power goes at any moment of a program, and after it has returned."""
    disk = Disk(work)
    calls = record(_STATES + program, work, *arguments)
    assert len([call for call in calls if call.name == "fsync"]) >= 2
    known: dict[object, str] = {}
    found: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    for done, tree in states_after(calls, disk, tries=tries):
        key = tuple(sorted(tree.items()))
        if key not in known:
            with TemporaryDirectory(dir=work.parent) as place:
                lay_out(tree, Path(place))
                known[key] = look(Path(place))
        found[done == len(calls)][known[key]] += 1
    assert len(known) > 3, "too few states to prove anything"
    return set(found[False]), set(found[True])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def and_then_saved(path: Path, given: Path) -> str:
    """As :func:`root_at`; the next save must find nothing in its way and leave nothing behind."""
    found = root_at(path, given)
    ckpt.save(OLD, path, overwrite=True)
    assert root_at(path, given) == "old"
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")] == []
    return found


def test_a_save_is_there_or_not(work: Path, given: Path) -> None:
    meanwhile, afterwards = outcomes(
        work, "ckpt.save(new, folder + '/c')", look=lambda place: and_then_saved(place / "c", given)
    )

    assert meanwhile == {"nothing", "new"}
    assert afterwards == {"new"}


def test_a_save_in_a_folder_that_is_not_there_yet(work: Path, given: Path) -> None:
    meanwhile, afterwards = outcomes(
        work, "ckpt.save(new, folder + '/runs/1/c')", look=lambda place: and_then_saved(place / "runs/1/c", given)
    )

    assert meanwhile == {"nothing", "new"}
    assert afterwards == {"new"}


def test_a_save_in_the_background_is_there_or_not(work: Path, given: Path) -> None:
    meanwhile, afterwards = outcomes(
        work,
        "ckpt.save_async(new, folder + '/c').result()",
        look=lambda place: and_then_saved(place / "c", given),
    )

    assert meanwhile == {"nothing", "new"}
    assert afterwards == {"new"}


def test_a_replaced_checkpoint_is_the_old_or_the_new_one(work: Path, given: Path) -> None:
    ckpt.save(OLD, work / "c")

    meanwhile, afterwards = outcomes(
        work, "ckpt.save(new, folder + '/c', overwrite=True)", look=lambda place: and_then_saved(place / "c", given)
    )

    assert meanwhile == {"old", "new"}
    assert afterwards == {"new"}


def test_an_applied_delta_is_there_or_not(work: Path, given: Path) -> None:
    meanwhile, afterwards = outcomes(
        work,
        "ckpt.apply(sys.argv[2] + '/old', sys.argv[2] + '/delta', folder + '/c')",
        str(given),
        look=lambda place: and_then_saved(place / "c", given),
    )

    assert meanwhile == {"nothing", "new"}
    assert afterwards == {"new"}


def test_a_signature_is_there_or_not(work: Path, given: Path) -> None:
    ckpt.save(OLD, work / "c")
    key = given / "key.pub.pem"

    def look(place: Path) -> str:
        assert root_at(place / "c", given) == "old"
        found = "signed" if ckpt.verify(place / "c", trust=[key]).ok else "unsigned"
        ckpt.sign(place / "c", given / "key.pem")
        assert ckpt.verify(place / "c", trust=[key]).ok
        assert [entry.name for entry in place.iterdir()] == ["c"]
        return found

    meanwhile, afterwards = outcomes(work, "ckpt.sign(folder + '/c', sys.argv[2] + '/key.pem')", str(given), look=look)

    assert meanwhile == {"unsigned", "signed"}
    assert afterwards == {"signed"}


def test_an_adopted_file_has_its_manifest_or_not(work: Path, given: Path) -> None:
    save_file(NEW, work / "x.safetensors")

    def look(place: Path) -> str:
        found = "adopted" if (place / "x.safetensors.manifest.pb").exists() else "not yet"
        ckpt.adopt(place / "x.safetensors")
        assert torch.equal(ckpt.load(place / "x.safetensors")["w"], NEW["w"])
        assert sorted(entry.name for entry in place.iterdir()) == ["x.safetensors", "x.safetensors.manifest.pb"]
        return found

    meanwhile, afterwards = outcomes(work, "ckpt.adopt(folder + '/x.safetensors')", look=look)

    assert meanwhile == {"not yet", "adopted"}
    assert afterwards == {"adopted"}


def test_retention_removes_whole_checkpoints_and_never_the_newest(work: Path, given: Path) -> None:
    for step in (1, 2, 3):
        ckpt.save(OLD, work / f"step-{step}")

    def look(place: Path) -> str:
        left = sorted(path.name for path in place.glob("step-*"))
        assert all(root_at(place / name, given) == "old" for name in left)
        assert ckpt.latest(place) == place / "step-3"
        ckpt.keep(place, newest=1)
        assert [entry.name for entry in place.iterdir()] == ["step-3"]
        return " ".join(left)

    meanwhile, afterwards = outcomes(work, "ckpt.keep(folder, newest=1)", look=look)

    assert meanwhile == {"step-1 step-2 step-3", "step-2 step-3", "step-3"}
    assert afterwards == {"step-3"}


_CARELESS: dict[str, str] = {
    "files": "sync = os.fsync; os.fsync = lambda fd: os.path.isdir(f'/proc/self/fd/{fd}') and sync(fd)",
    "folders": "sync = os.fsync; os.fsync = lambda fd: os.path.isdir(f'/proc/self/fd/{fd}') or sync(fd)",
}


@pytest.mark.parametrize("unsynced", _CARELESS)
def test_the_model_finds_what_a_writer_that_does_not_sync_would_lose(work: Path, given: Path, unsynced: str) -> None:
    ckpt.save(OLD, work / "c")
    program = f"{_CARELESS[unsynced]}\nckpt.save(new, folder + '/c', overwrite=True)"

    meanwhile, afterwards = outcomes(work, program, look=lambda place: root_at(place / "c", given))

    assert any(found.startswith("broken") for found in meanwhile)
    assert afterwards != {"new"}
