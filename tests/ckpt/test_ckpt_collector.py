"""Garbage collection is as it was after a call that pauses it, also where that call fails or overlaps another."""

import gc
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
import torch

import ckpt
from ckpt.collector import without_collection


@pytest.fixture(autouse=True, params=[True, False], ids=["on", "off"])
def was_on(request: pytest.FixtureRequest) -> Iterator[bool]:
    (gc.enable if request.param else gc.disable)()
    yield request.param
    gc.enable()


def test_it_is_paused_and_then_as_it_was(was_on: bool) -> None:
    with without_collection(), without_collection():
        assert not gc.isenabled()

    assert gc.isenabled() is was_on


def test_an_error_ends_the_pause(was_on: bool) -> None:
    with pytest.raises(KeyError), without_collection():
        raise KeyError

    assert gc.isenabled() is was_on


def test_of_overlapping_pauses_the_last_one_ends_it(was_on: bool) -> None:
    begun, end = Event(), Event()

    @without_collection()
    def other() -> None:
        begun.set()
        end.wait(60)

    with without_collection():
        thread = Thread(target=other)
        thread.start()
        begun.wait(60)
    assert not gc.isenabled()
    end.set()
    thread.join(60)

    assert gc.isenabled() is was_on


def test_calls_leave_it_as_it_was(was_on: bool, tmp_path: Path) -> None:
    ckpt.save({"w": torch.ones(3)}, tmp_path / "c")
    ckpt.load(tmp_path / "c")
    with pytest.raises(ckpt.UnsupportedStateError):
        ckpt.save({"w": object()}, tmp_path / "d")
    (tmp_path / "c" / "manifest.pb").write_bytes(b"")
    with pytest.raises(ckpt.FormatError):
        ckpt.load(tmp_path / "c")

    assert gc.isenabled() is was_on
