"""Each way to lie is refused by every call that can meet it: by its class, with what is wrong, and nothing changes."""

import json
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import ckpt
from ckpt.__main__ import main
from tests.hostile.calls import made
from tests.hostile.edits import copied
from tests.hostile.gallery import KINDS, write
from tests.hostile.lies import Kind, Lie


def name_of(kind: Kind) -> str:
    return next(name for name, known in KINDS.items() if known is kind)


LIES = [
    pytest.param(kind, lie, id=f"{kind_name} | {name}")
    for kind_name, kind in KINDS.items()
    for name, lie in kind.lies.items()
    if kind_name != "bomb"
]
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with a sound file of each kind, by the path of its name."""
    folders = {}
    for kind_name, kind in KINDS.items():
        folders[kind_name] = tmp_path_factory.mktemp(kind_name)
        kind.make(folders[kind_name])
    return folders


def told(kind: Kind, lie: Lie, sound: dict[str, Path], work: Path) -> Path:
    """A lying file, in a place of its own with all that lies beside it."""
    path = copied(sound[name_of(kind)], work / "w") / kind.name
    lie.tell(path)
    return path


def content(folder: Path) -> dict[Path, object]:
    """The files below a folder; of what is none, or a hole of a terabyte, the mode and size alone."""
    found: dict[Path, object] = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        small_file = stat.S_ISREG(status.st_mode) and status.st_size < 1 << 30
        found[path] = path.read_bytes() if small_file else (status.st_mode, status.st_size)
    return found


@pytest.mark.parametrize(("kind", "lie"), LIES)
def test_a_lie_is_refused_by_every_call_that_can_meet_it(
    kind: Kind, lie: Lie, sound: dict[str, Path], tmp_path: Path
) -> None:
    path = told(kind, lie, sound, tmp_path)
    before = content(tmp_path)

    for name, (look, call) in kind.calls.items():
        if look >= lie.found_by:
            with pytest.raises(ckpt.CheckpointError, match=re.escape(lie.says)) as caught:
                call(path)
            assert type(caught.value) is lie.error, name
    assert content(tmp_path) == before


@pytest.mark.parametrize("kind_name", [name for name in KINDS if name != "bomb"])
def test_what_the_lies_are_made_of_is_sound(kind_name: str, sound: dict[str, Path], tmp_path: Path) -> None:
    kind = KINDS[kind_name]
    for number, (_, call) in enumerate(kind.calls.values()):
        call(copied(sound[kind_name], tmp_path / str(number)) / kind.name)


COMMANDS: dict[str, Callable[[Path], list[object]]] = {
    "checkpoint": lambda path: ["verify", path],
    "attachment": lambda path: ["verify", path],
    "adopted": lambda path: ["verify", path],
    "signatures": lambda path: ["verify", path],
    "header": lambda path: ["adopt", path],
    "index": lambda path: ["adopt", path],
    "delta": lambda path: ["apply", path.parent / "old", path, made(path)],
}


@pytest.mark.parametrize(("kind", "lie"), [case for case in LIES if name_of(case.values[0]) in COMMANDS])
def test_the_command_line_says_the_same(
    kind: Kind, lie: Lie, sound: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = told(kind, lie, sound, tmp_path)

    code = main([*map(str, COMMANDS[name_of(kind)](path)), "--json"])

    said = json.loads(capsys.readouterr().out)
    fault = said["faults"][0] if "faults" in said else said
    assert code == 1
    assert fault["error"] == lie.error.__name__
    assert lie.says in fault["message"]


def test_the_gallery_is_written_for_people_to_look_at(tmp_path: Path) -> None:
    write(tmp_path / "out", ("header", "torch"))

    rows = [row.split("\t") for row in (tmp_path / "out" / "index.tsv").read_text().splitlines()[1:]]
    assert len(rows) == len(KINDS["header"].lies) + len(KINDS["torch"].lies)
    assert all((tmp_path / "out" / path).exists() for _, _, path, _, _ in rows)
