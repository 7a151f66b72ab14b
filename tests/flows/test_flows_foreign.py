"""The wine pipeline on other people's servers, each of which goes away once while it runs, and comes back."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import ckpt
import registry
from flows.settings import stack_name
from flows.stack import records
from registry.server import Server
from tests.flows.foreign import PASSWORD, USER, Foreign, Program, foreign_servers, may_run

REPOSITORY = Path(__file__).resolve().parent.parent.parent
why_not = may_run()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(why_not is not None, reason=str(why_not)),
]
AWAY_S = 10.0
SPELLINGS = (PASSWORD, "pass-word%2Fof%40ann", "YW5uOnBhc3Mtd29yZC9vZkBhbm4=")  # plain, in an address, in a header


class Run:
    """A state folder on these servers, and the pipeline running in it."""

    def __init__(self, home: Path, servers: Foreign) -> None:
        own = {
            key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_", "TREERING_"))
        }
        self.home, self.said = home, ""
        self.environment = {**own, **servers.variables, "TREERING_HOME": str(home)}
        self.name = stack_name(home)

    def command(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=REPOSITORY,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        self.said += done.stdout + done.stderr
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """Prefect's answer; it may be away."""
        while True:
            try:
                url = self.environment["PREFECT_API_URL"] + path
                answer = httpx.post(url, json=body, auth=(USER, PASSWORD), timeout=30.0, trust_env=False)
                return answer.raise_for_status().json()
            except httpx.TransportError:
                time.sleep(0.2)

    def log(self) -> str:
        file = self.home / "stack" / "flow-runs.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait_for(self, words: str, *, since: int = 0, timeout_s: float = 300.0) -> None:
        """Return when the log of the flow run holds some words, past a position."""
        deadline = time.monotonic() + timeout_s
        while not re.search(words, self.log()[since:]):
            assert time.monotonic() < deadline, f"{words!r} is not in:\n{self.log()[-5000:]}"
            assert "in state Failed" not in self.log(), self.log()[-5000:]
            assert "in state Crashed" not in self.log(), self.log()[-5000:]
            time.sleep(0.1)

    def interrupt(self, server: Program, *, at: str, notices: str) -> None:
        """Stop a server at some words of the log; start it when it was missed, and away for a while."""
        self.wait_for(at)
        since, began = len(self.log()), time.monotonic()
        server.stop()
        self.wait_for(notices, since=since)
        time.sleep(max(0.0, began + AWAY_S - time.monotonic()))
        server.start()

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _belongs(process, self.home)]


def _belongs(process: psutil.Process, home: Path) -> bool:
    try:
        return process.environ().get("TREERING_STACK") == str(home)
    except (psutil.Error, OSError):
        return False


def test_a_pipeline_on_other_peoples_servers_outlives_each_ones_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    with foreign_servers() as servers:
        run = Run(home, servers)
        try:
            run.command("flows", "up")
            run.environment |= _exported(run.command("flows", "env"))
            _run_the_pipeline(run, servers)

            _check_that_no_secret_is_shown(run)
            _check_that_the_event_came_back(run)
            assert {record.name for record in records(home)} == {
                *("prefect-worker", "keeper", "fleet-wine", "monitor-wine"),
            }
            for variable, value in servers.variables.items():
                monkeypatch.setenv(variable, value)
            _check_versions(Server.from_environment().uri, home, tmp_path / "cache")
        finally:
            run.command("flows", "down")

        assert run.processes() == []
        assert _files_with_secrets(run.home) == []
        assert [server.is_alive() for server in (servers.mlflow, servers.prefect, servers.victoria)] == [True] * 3
        assert not any(spelling in run.said for spelling in SPELLINGS)
        pools = run.ask("/work_pools/filter", {})
        assert [pool["name"] for pool in pools] == [run.name]


def _exported(text: str) -> dict[str, str]:
    lines = (line.removeprefix("export ").partition("=") for line in text.splitlines())
    return {name: value.strip("'") for name, _, value in lines if name not in ("PATH", "PYTHONPATH")}


def _run_the_pipeline(run: Run, servers: Foreign) -> None:
    """Start it, take away MLflow while version 1 is made, Prefect at version 2, VictoriaMetrics at version 3."""
    parameters = ("--param", "recipe=recipes.wine", "--param", "backend=eager")
    run.command("prefect", "deployment", "run", f"pipeline/{run.name}", *parameters)
    run.interrupt(servers.mlflow, at="train full", notices="no answer about .* Trying again")
    run.interrupt(servers.prefect, at="train head", notices="refuses connections|websocket failed")
    run.interrupt(servers.victoria, at="train steps", notices="no metric store answers")
    deadline = time.monotonic() + 300
    state = ""
    while state not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
        assert time.monotonic() < deadline, run.log()[-5000:]
        (found,) = run.ask("/flow_runs/filter", {"flows": {"name": {"any_": ["pipeline"]}}})
        state = found["state_type"]
        time.sleep(0.5)
    assert state == "COMPLETED", run.log()[-8000:]


def _check_versions(uri: str, home: Path, cache: Path) -> None:
    server = Server(uri=uri, home=home)
    versions = server.versions("wine")
    assert [version.number for version in versions] == [1, 2, 3, 4]
    assert len(server.client.search_model_versions("name='wine'")) == 4
    assert [model.status for model in server.client.search_logged_models([server.experiment("wine")])] == ["READY"] * 4
    for version in versions:
        folder = registry.fetch(version.reference, cache=cache, server=server)
        assert ckpt.verify(folder, root=version.root).ok
    assert (server.alias("wine", "champion"), server.alias("wine", "previous")) == (3, 2)
    actions = [entry.action for entry in registry.history("wine", server=server) if entry.action != "nothing"]
    assert actions == ["promote"] * 4 + ["rollback"]


def _check_that_the_event_came_back(run: Run) -> None:
    """The alarm's automation ran the rollback of this stack, by its own deployment."""
    deadline = time.monotonic() + 120
    states: list[str] = []
    while states != ["COMPLETED"] and time.monotonic() < deadline:
        time.sleep(0.5)
        runs = run.ask("/flow_runs/filter", {"flows": {"name": {"any_": ["rollback"]}}})
        states = [found["state_type"] for found in runs if found["deployment_id"]]
    assert states == ["COMPLETED"]


def _files_with_secrets(home: Path) -> list[Path]:
    secrets = [spelling.encode() for spelling in (*SPELLINGS, (home / "token").read_text())]
    files = [file for file in home.rglob("*") if file.is_file() and file.name != "token"]
    return [file for file in files if any(secret in file.read_bytes() for secret in secrets)]


def _check_that_no_secret_is_shown(run: Run) -> None:
    secrets = [spelling.encode() for spelling in (*SPELLINGS, (run.home / "token").read_text())]
    lines = {process.pid: " ".join(process.cmdline()).encode() for process in run.processes()}
    assert len(lines) >= 6  # Prefect worker, keeper, fleet, two workers, monitor
    assert [line for line in lines.values() if any(secret in line for secret in secrets)] == []
    folders = {file.parent for file in _files_with_secrets(run.home)}
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)  # Prefect's own, while a run lives
    assert all(folder.name.startswith("prefect-workspace-attempt-") for folder in folders)
    said = [run.ask(path, {"limit": 200}) for path in ("/logs/filter", "/artifacts/filter", "/flow_runs/filter")]
    assert all(said)
    assert not any(secret in repr(said).encode() for secret in secrets)
