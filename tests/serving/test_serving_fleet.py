"""A fleet keeps its workers at what an alias names, or says why not."""

import os
import select
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from serving.__main__ import main
from serving.client import Client
from serving.load import summarize
from serving.source import FolderSource

ROW_GROUPS = [range(1), range(1, 4), range(2, 12)]


@dataclass
class RunningFleet:
    """A fleet of two real workers, and the source that it follows (a private copy of the shop)."""

    process: Any
    url: str
    workers: list[str]
    source: FolderSource
    folder: Path
    status_file: Path
    token: str

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        response = httpx.post(self.url + path, json=body, headers=headers, timeout=60, trust_env=False)
        document: dict[str, Any] = response.json()
        return document

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = httpx.get(self.url, trust_env=False).json()
        return document

    def point(self, version: str) -> dict[str, Any]:
        """Move the alias and let the fleet converge."""
        self.source.point("mini", alias="champion", version=version)
        return self.post("/converge")


@pytest.fixture
def fleet(shop: Any, tiny: Any, launch: Callable[..., Any], tmp_path: Path) -> RunningFleet:
    folder = tmp_path / "versions"
    shutil.copytree(shop.folder / "mini", folder / "mini")
    process = launch(
        *("fleet", "--model", "mini@champion", "--from", str(folder), "--workers", "2", "--port", "0"),
        *("--state", str(tmp_path / "state")),
    )
    lines = [process.line() for _ in range(3)]
    assert all(lines), process.end()
    url, *workers = (line.split()[-1] for line in lines)
    running = RunningFleet(
        process, url, workers, FolderSource(folder), folder, tmp_path / "state" / "status.json", tiny.token
    )
    assert running.post("/converge")["converged"]
    return running


def roots_of(status: dict[str, Any]) -> list[str]:
    return [worker["root"] for worker in status["workers"]]


def test_the_life_of_a_fleet(fleet: RunningFleet, shop: Any, under_load: Any) -> None:
    """Two updates, a refused one, an undo and a death, under load: nothing fails and every answer is exact."""
    one, two, three = (shop.roots[version] for version in "123")
    with under_load(fleet.workers, ROW_GROUPS, clients=2) as shots:
        assert roots_of(fleet.status()) == [one, one]

        second = fleet.point("2")
        assert (roots_of(second), second["converged"], second["problem"]) == ([two, two], True, None)
        assert [worker["generation"] for worker in second["workers"]] == [2, 2]
        assert [worker["previous_root"] for worker in second["workers"]] == [one, one]

        shutil.copytree(fleet.folder / "mini" / "3", fleet.folder / "mini" / "4")
        payload = next((fleet.folder / "mini" / "4").glob("weights-*.safetensors"))
        payload.write_bytes(payload.read_bytes()[:-4] + b"\0\0\0\0")
        refused = fleet.point("4")
        assert (roots_of(refused), refused["converged"]) == ([two, two], False)
        assert "does not match its manifest" in refused["problem"]

        shutil.rmtree(fleet.folder / "mini" / "4")
        third = fleet.point("3")
        assert (roots_of(third), third["converged"]) == ([three, three], True)

        undone = fleet.post("/undo", root=three)
        assert (undone["outcome"], roots_of(undone), undone["held_back"]) == ("undone", [two, two], three)
        again = fleet.post("/undo", root=three)
        assert (again["outcome"], roots_of(again)) == ("noop", [two, two])
        held = fleet.post("/converge")
        assert (roots_of(held), held["converged"]) == ([two, two], False)
        assert "undone here" in held["problem"]

    assert summarize(shots).failed == 0
    assert {shot.reply.root for shot in shots} == {one, two, three}
    assert all(shop.is_exact(shot.reply, ROW_GROUPS[shot.request]) for shot in shots)
    assert orjson.loads(fleet.status_file.read_bytes())["workers"] == fleet.status()["workers"]

    os.kill(held["workers"][0]["pid"], signal.SIGKILL)
    _wait_until(fleet, lambda status: status["workers"][0]["starts"] == 2)
    back = fleet.post("/converge")
    assert roots_of(back) == [two, two]  # the dead worker came back on what the others serve, not on what was undone

    fleet.source.quarantine("mini", root=one)
    quarantined = fleet.point("1")
    assert roots_of(quarantined) == [two, two]
    assert "quarantined root" in quarantined["problem"]

    settled = fleet.point("2")
    assert (settled["converged"], settled["held_back"]) == (True, None)
    with Client(fleet.workers[0], model="mini") as client:
        assert client.infer({"image": shop.images[:1].numpy()}).root == two

    pids = [worker["pid"] for worker in settled["workers"]]
    assert fleet.process.stop() == (0, "")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_a_program_exchanged_with_its_manifest_runs_on_no_worker(
    fleet: RunningFleet, shop: Any, exchange: Callable[[Path], str]
) -> None:
    """Neither where a worker is started again nor where one stages, though the folder verifies and has the root."""
    served = fleet.folder / "mini" / "1"
    words = f"found seal {exchange(served)}, expected seal {shop.seals['1']}"

    os.kill(fleet.status()["workers"][0]["pid"], signal.SIGKILL)
    _wait_until(fleet, lambda status: status["workers"][0]["starts"] >= 3)
    restarted, other = fleet.status()["workers"]
    assert (restarted["state"], restarted["root"]) == ("starting", None)
    assert (other["state"], other["root"]) == ("ready", shop.roots["1"])
    with Client(other["url"], model="mini") as client:
        assert shop.is_exact(client.infer({"image": shop.images[:1].numpy()}), range(1))

    shutil.rmtree(served)
    shutil.copytree(shop.checkpoint("1"), served)
    assert fleet.post("/converge")["converged"]

    fleet.point("2")
    assert fleet.point("3")["converged"]
    exchange(served)
    for refused in (fleet.point("1"), fleet.post("/converge")):  # the second fetches again: the folder is as it was
        assert roots_of(refused) == [shop.roots["3"], shop.roots["3"]]
        assert words in refused["problem"]

    status, errors = fleet.process.stop()
    assert status == 0
    assert words in errors  # of the start


def _wait_until(fleet: RunningFleet, holds: Callable[[dict[str, Any]], bool]) -> None:
    while not holds(fleet.status()):
        pass


def test_a_worker_does_not_outlive_its_killed_fleet(versions: Path, launch: Callable[..., Any], tmp_path: Path) -> None:
    process = launch(
        *("--model", "mini@champion", "--from", str(versions), "--port", "0", "--state", str(tmp_path / "state"))
    )
    url, worker = (process.line().split()[-1] for _ in range(2))
    with Client(worker, model="mini") as client:
        while not client.is_ready():
            pass
    (pid,) = (worker["pid"] for worker in httpx.get(url, trust_env=False).json()["workers"])
    watched = os.pidfd_open(pid)

    process.stop(signal.SIGKILL)

    assert select.select([watched], [], [], 60)[0]
    os.close(watched)


@pytest.fixture
def versions(shop: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "versions"
    shutil.copytree(shop.folder / "mini", folder / "mini")
    return folder


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("no alias", "SourceError: alias 'mini@champion': found aliases []"),
        ("no version", "SourceError: version 9 of 'mini'"),
        ("quarantined", "QuarantinedError: alias 'mini@champion'"),
        ("corrupt", "StartError: worker 0"),
    ],
)
def test_a_fleet_that_cannot_start_ends_with_the_reason(
    change: str, named: str, versions: Path, shop: Any, launch: Callable[..., Any], tmp_path: Path
) -> None:
    source = FolderSource(versions)
    if change == "no alias":
        (versions / "mini" / "aliases.json").unlink()
    elif change == "no version":
        source.point("mini", alias="champion", version="9")
    elif change == "quarantined":
        source.quarantine("mini", root=shop.roots["1"])
    else:
        next((versions / "mini" / "1").glob("weights-*.safetensors")).write_bytes(b"")

    process = launch(
        *("--model", "mini@champion", "--from", str(versions), "--port", "0", "--state", str(tmp_path / "state"))
    )
    status, errors = process.end()

    assert status == 1
    assert named in errors


def test_a_model_without_its_alias_is_named(launch: Callable[..., Any], tmp_path: Path) -> None:
    status, errors = launch("fleet", "--model", "mini", "--from", str(tmp_path)).end()

    assert status == 1
    assert errors.startswith("StartError: --model: found 'mini', expected NAME@ALIAS")


@pytest.mark.parametrize("path", ["/converge", "/undo"])
def test_control_calls_of_a_fleet_need_the_token(path: str) -> None:
    import asyncio

    from serving.guard import Guarded
    from serving.token import Token

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("a call without the token came through")

    async def scenario() -> int:
        app = Guarded(never, token=Token("a-token-of-the-tests"), paths=("/converge", "/undo"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://fleet") as http:
            return (await http.post(path, content=b"{}")).status_code

    assert asyncio.run(scenario()) == 401


@pytest.mark.parametrize("workers", ["0", "-1", "many"])
def test_a_fleet_has_workers(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fleet", "--model", "m@champion", "--workers", workers])

    assert "argument --workers" in capsys.readouterr().err
