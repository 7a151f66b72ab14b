"""How a fleet decides, without processes: children that stage and flip in memory, a source that is told what to say."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from serving.client import Standing
from serving.errors import CallError, NothingToUndoError, SourceError
from serving.fleet import Fleet
from serving.source import Desired, Target


def desired(version: str) -> Desired:
    return Desired(name="m", version=version, root=f"sha256:{version}")


def target(wanted: Desired, folder: str) -> Target:
    return Target(desired=wanted, folder=Path(folder), seal=f"seal {wanted.version}")


@dataclass
class ToldSource:
    """``alias`` is the version that the alias names, or an error; ``folders`` are what fetches return, in turn."""

    alias: str | SourceError = "1"
    folders: dict[str, list[str]] = field(default_factory=dict)

    def resolve(self, name: str, alias: str) -> Desired:
        if isinstance(self.alias, SourceError):
            raise self.alias
        return desired(self.alias)

    def fetch(self, wanted: Desired) -> Target:
        return target(wanted, self.folders.get(wanted.version, ["good"]).pop(0))


class MemoryWorker:
    """A worker's control face; folders called ``bad`` are refused, and all are when it is ``picky``."""

    def __init__(self, picky: bool = False) -> None:
        self.now = Standing(root="sha256:1", version="1", generation=1, staged_root=None, previous_root=None)
        self.picky = picky

    def standing(self) -> Standing:
        return self.now

    def stage(self, folder: Path, *, root: str, seal: str, version: str) -> Standing:
        assert seal == f"seal {version}"
        if folder.name == "bad" or self.picky:
            raise CallError("stage", found="a bad folder", expected="a good one", status_code=409)
        self.now = replace(self.now, staged_root=root)
        return self.now

    def flip(self, root: str) -> Standing:
        assert self.now.staged_root == root
        self.now = replace(self.now, root=root, staged_root=None, previous_root=self.now.root)
        return self.now

    def undo(self, suspect: str) -> Standing:
        if self.now.root == suspect and self.now.previous_root is None:
            raise CallError("undo", found="no previous generation", expected="one", status_code=409)
        if self.now.root == suspect:
            self.now = replace(self.now, root=self.now.previous_root, previous_root=None)
        return self.now


class MemoryChild:
    def __init__(self, index: int, worker: MemoryWorker) -> None:
        self.index, self.client, self.is_ready = index, worker, True
        self.url, self.pid, self.starts, self.problem = f"memory:{index}", None, 1, None
        self.standing: Standing | None = None

    async def observe(self) -> Standing | None:
        self.standing = self.client.standing()
        return self.standing

    async def call(self, method: Callable[[], Standing]) -> Standing | None:
        try:
            self.standing = method()
        except CallError as error:
            self.problem = str(error)
            return None
        self.problem = None
        return self.standing


def fleet_of(source: ToldSource, workers: list[MemoryWorker], folder: Path) -> Fleet:
    children: Any = [MemoryChild(index, worker) for index, worker in enumerate(workers)]
    first = target(desired("1"), "good")
    return Fleet(children, source=source, name="m", alias="a", first=first, status_file=folder / "status.json")


def test_what_one_worker_refuses_goes_live_on_none(tmp_path: Path) -> None:
    workers = [MemoryWorker(), MemoryWorker(picky=True)]
    fleet = fleet_of(ToldSource(alias="2"), workers, tmp_path)

    status = asyncio.run(fleet.reconcile())

    assert [worker.now.root for worker in workers] == ["sha256:1", "sha256:1"]
    assert not status["converged"]
    assert status["problem"].startswith("worker 1: stage: found a bad folder")
    assert status["target"]["version"] == "1"


def test_a_refused_folder_is_fetched_again(tmp_path: Path) -> None:
    workers = [MemoryWorker(), MemoryWorker()]
    fleet = fleet_of(ToldSource(alias="2", folders={"2": ["bad", "good"]}), workers, tmp_path)

    first = asyncio.run(fleet.reconcile())
    second = asyncio.run(fleet.reconcile())

    assert (first["converged"], second["converged"]) == (False, True)
    assert [worker.now.root for worker in workers] == ["sha256:2", "sha256:2"]


def test_a_source_that_fails_changes_nothing_and_is_quoted(tmp_path: Path) -> None:
    workers = [MemoryWorker()]
    source = ToldSource(alias=SourceError("the registry", found="silence", expected="an answer"))
    fleet = fleet_of(source, workers, tmp_path)

    status = asyncio.run(fleet.reconcile())

    assert workers[0].now.root == "sha256:1"
    assert status["problem"] == "the registry: found silence, expected an answer."


def test_an_undone_root_stays_away_until_the_alias_has_moved(tmp_path: Path) -> None:
    workers = [MemoryWorker(), MemoryWorker()]
    source = ToldSource(alias="2", folders={"2": ["good"]})
    fleet = fleet_of(source, workers, tmp_path)
    asyncio.run(fleet.reconcile())

    undone = asyncio.run(fleet.undo("sha256:2"))
    held = asyncio.run(fleet.reconcile())
    source.alias = "1"
    moved = asyncio.run(fleet.reconcile())
    source.alias = "2"
    back = asyncio.run(fleet.reconcile())

    assert (undone["outcome"], undone["held_back"], undone["workers"][0]["root"]) == ("undone", "sha256:2", "sha256:1")
    assert (held["converged"], held["workers"][1]["root"]) == (False, "sha256:1")
    assert "undone here" in held["problem"]
    assert (moved["converged"], moved["held_back"]) == (True, None)
    assert (back["converged"], back["workers"][0]["root"]) == (True, "sha256:2")


def test_a_worker_without_a_way_back_is_brought_there_by_the_folder(tmp_path: Path) -> None:
    workers = [MemoryWorker(), MemoryWorker()]
    fleet = fleet_of(ToldSource(alias="2"), workers, tmp_path)
    asyncio.run(fleet.reconcile())
    workers[1].now = replace(workers[1].now, previous_root=None)  # as after a restart

    asyncio.run(fleet.undo("sha256:2"))

    assert [worker.now.root for worker in workers] == ["sha256:1", "sha256:1"]


def test_an_undo_of_what_is_not_live_does_nothing_and_the_first_version_has_no_way_back(tmp_path: Path) -> None:
    fleet = fleet_of(ToldSource(), [MemoryWorker()], tmp_path)

    assert asyncio.run(fleet.undo("sha256:9"))["outcome"] == "noop"
    with pytest.raises(NothingToUndoError, match="no version served before it"):
        asyncio.run(fleet.undo("sha256:1"))
