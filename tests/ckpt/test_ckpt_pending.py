"""A save in the background writes what was there when it was asked for, and no failure of it is lost."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file

import ckpt
from ckpt.saving.memory import collect, memory_of
from ckpt.saving.snapshot import Arena
from tests.ckpt.strategies import states

PATIENCE_S = 60


@contextmanager
def held_back() -> Iterator[tuple[Event, Callable[[int, int], None]]]:
    """A progress callback that lets no save get past its first block before the event is set."""
    go_on = Event()

    def progress(_done: int, _total: int) -> None:
        assert go_on.wait(PATIENCE_S)

    try:
        yield go_on, progress
    finally:
        go_on.set()


def failing(_done: int, _total: int) -> None:
    raise OSError(5, "Input/output error")


def training_state() -> dict[str, Any]:
    """A state of every way in which bytes lie in memory."""
    flat = torch.arange(4000.0)
    return {
        "plain": torch.arange(3_000_000.0),
        "channels_last": torch.rand(4, 3, 5, 5).to(memory_format=torch.channels_last),
        "with_gaps": flat[::3],
        "first": flat[1000:2000].view(10, 100),
        "tied": (kept := torch.rand(17)),
        "again": kept,
        "array": np.arange(12.0).reshape(3, 4),
        "empty": torch.empty(0, 3),
        "moments": {0: {"step": torch.tensor(7), "exp_avg": torch.rand(5)}},
    }


def spoil(state: Any) -> None:
    for value in state.values():
        if isinstance(value, dict):
            spoil(value)
        elif isinstance(value, np.ndarray):
            value[:] = -1
        else:
            value.fill_(-1)


def test_what_changes_afterwards_never_reaches_the_file(tmp_path: Path) -> None:
    state, note = training_state(), tmp_path / "note.txt"
    note.write_text("before")
    expected = ckpt.save(state, tmp_path / "now", attachments={"note.txt": note}, metadata={"step": "7"})
    metadata = {"step": "7"}

    with held_back() as (go_on, progress):
        pending = ckpt.save_async(
            state, tmp_path / "later", attachments={"note.txt": note}, metadata=metadata, progress=progress
        )
        spoil(state)
        note.write_text("after")
        metadata["step"] = "8"
        assert not pending.done()
        go_on.set()
        manifest = pending.result(PATIENCE_S)

    assert pending.done()
    assert (manifest.root, manifest.seal) == (expected.root, expected.seal)
    assert ckpt.verify(tmp_path / "later", root=expected.root).ok
    assert (tmp_path / "later" / "note.txt").read_text() == "before"


@given(state=states)
@settings(max_examples=60, deadline=None)
def test_any_state_has_the_root_that_save_gives_it(state: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("any")

    pending = ckpt.save_async(state, folder / "later")

    assert pending.result(PATIENCE_S).root == ckpt.save(state, folder / "now").root


def test_one_save_after_the_other_each_with_its_own_bytes(tmp_path: Path) -> None:
    state = {"w": torch.zeros(1_000_000)}
    pending = []

    for step in range(4):
        state["w"].fill_(step)
        pending.append(ckpt.save_async(state, tmp_path / f"step-{step}"))

    for step, one in enumerate(pending):
        one.result(PATIENCE_S)
        (weights,) = (tmp_path / f"step-{step}").glob("weights-*.safetensors")
        assert load_file(weights)["w"].eq(step).all()


def test_the_next_save_waits_for_the_one_before(tmp_path: Path) -> None:
    with held_back() as (go_on, progress):
        first = ckpt.save_async({"w": torch.zeros(9)}, tmp_path / "first", progress=progress)
        second = Thread(target=lambda: ckpt.save_async({"w": torch.ones(9)}, tmp_path / "second"))
        second.start()
        assert second.is_alive()
        assert not first.done()
        assert not (tmp_path / "second").exists()
        go_on.set()
        second.join(PATIENCE_S)

    first.result(PATIENCE_S)
    assert ckpt.save_async({}, tmp_path / "third").result(PATIENCE_S)  # and so the second has ended
    assert ckpt.load(tmp_path / "first")["w"].sum() == 0
    assert ckpt.load(tmp_path / "second")["w"].sum() == 9


def test_a_failure_is_told_by_result_and_then_no_more(tmp_path: Path) -> None:
    pending = ckpt.save_async({"w": torch.ones(9)}, tmp_path / "c", progress=failing)

    with pytest.raises(OSError, match="Input/output error"):
        pending.result(PATIENCE_S)

    assert list(tmp_path.iterdir()) == []
    assert ckpt.save_async({"w": torch.ones(9)}, tmp_path / "c").result(PATIENCE_S)


def test_a_failure_that_nobody_asked_for_is_told_by_the_next_save(tmp_path: Path) -> None:
    ckpt.save_async({"w": torch.ones(9)}, tmp_path / "lost", progress=failing)

    with pytest.raises(OSError, match="Input/output error") as caught:
        ckpt.save_async({"w": torch.ones(9)}, tmp_path / "next")

    assert f"the save of '{tmp_path / 'lost'}' in the background" in caught.value.__notes__[0]
    assert list(tmp_path.iterdir()) == []
    assert ckpt.save_async({"w": torch.ones(9)}, tmp_path / "next").result(PATIENCE_S)


def test_what_can_be_refused_at_once_is(tmp_path: Path) -> None:
    ckpt.save({"w": torch.ones(1)}, tmp_path / "there")

    with pytest.raises(ckpt.DestinationError, match="exists already"):
        ckpt.save_async({"w": torch.ones(1)}, tmp_path / "there")
    with pytest.raises(ckpt.UnsupportedStateError, match="model"):
        ckpt.save_async({"model": torch.nn.Linear(1, 1)}, tmp_path / "c")
    with pytest.raises(ckpt.DestinationError, match="is no file"):
        ckpt.save_async({}, tmp_path / "c", attachments={"a": tmp_path / "missing"})
    with pytest.raises(ckpt.DestinationError, match=r"\.\./a"):
        ckpt.save_async({}, tmp_path / "c", attachments={"../a": __file__})

    assert [entry.name for entry in tmp_path.iterdir()] == ["there"]


def test_a_result_that_is_not_there_yet_is_not_waited_for_longer_than_asked(tmp_path: Path) -> None:
    with held_back() as (_, progress):
        pending = ckpt.save_async({"w": torch.ones(9)}, tmp_path / "c", progress=progress)

        with pytest.raises(TimeoutError):
            pending.result(0)

    assert pending.result(PATIENCE_S).root


def test_the_path_is_that_of_the_folder_one_was_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    with held_back() as (go_on, progress):
        pending = ckpt.save_async({"w": torch.ones(9)}, "c", progress=progress)
        os.chdir(tmp_path / "elsewhere")
        go_on.set()
        pending.result(PATIENCE_S)

    assert pending.path == tmp_path / "c"
    assert ckpt.verify(tmp_path / "c").ok


def test_the_memory_of_a_snapshot_serves_the_next_one() -> None:
    arena = Arena()
    first, second = (collect({"a": torch.rand(1000), "b": torch.rand(10, 3).t()})[1] for _ in range(2))

    places = []
    for sources in (first, second):
        copies = arena.copy(sources)
        places.append([memory_of(torch.frombuffer(next(copy.blocks()), dtype=torch.uint8)).obj for copy in copies])
        assert [b"".join(copy.blocks()) for copy in copies] == [b"".join(source.blocks()) for source in sources]

    addresses = [[array.ctypes.data for array in arrays] for arrays in places]
    assert addresses[0] == addresses[1]


_PROGRAM = """
import sys, torch, ckpt
torch.manual_seed(0)
def failing(done, total):
    raise OSError(5, "Input/output error")
state = {"w": torch.rand(10_000_000)}
ckpt.save_async(state, sys.argv[1], progress=failing if len(sys.argv) > 2 else None)
state["w"].zero_()
"""


def program(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=120
    )


def test_a_program_that_ends_waits_for_its_last_checkpoint(tmp_path: Path) -> None:
    ended = program(str(tmp_path / "c"))

    assert ended.stderr == ""
    torch.manual_seed(0)
    assert ckpt.load(tmp_path / "c")["w"].equal(torch.rand(10_000_000))


def test_a_program_that_ends_tells_of_a_failure_that_nobody_asked_for(tmp_path: Path) -> None:
    ended = program(str(tmp_path / "c"), "fail")

    path = tmp_path / "c"
    assert ended.stderr.strip().endswith(
        f"saving '{path}' in the background failed: OSError: [Errno 5] Input/output error: '{path}'"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_saves_without_its_parents_save(tmp_path: Path) -> None:
    with held_back() as (_, progress):
        pending = ckpt.save_async({"w": torch.ones(9)}, tmp_path / "parent", progress=progress)
        child = os.fork()
        if child == 0:
            ckpt.save_async({"w": torch.zeros(9)}, tmp_path / "child").result(PATIENCE_S)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not pending.done()

    pending.result(PATIENCE_S)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["child", "parent"]
