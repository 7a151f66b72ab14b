"""Kill processes of a real stack at chosen moments of a pipeline, and check that nothing is torn.

A *blow* names a moment (a line of the demo's output, and which occurrence of it) and a victim. A run of the demo with
its blows ends with exit 0, or with 1 and a clear word.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

import ckpt
import registry
from registry.server import Server

REPOSITORY = Path(__file__).resolve().parent.parent.parent
COMMAND = (sys.executable, "-m", "flows")
MODEL = "wine"
MOMENTS = {
    "ingest": ("for flow 'ingest'", 1),
    "train": ("for flow 'train'", 1),
    "release": ("for flow 'release'", 1),
    "deploy": ("for flow 'deploy'", 1),
    "train-2": ("for flow 'train'", 2),
    "release-2": ("for flow 'release'", 2),
    "deploy-2": ("for flow 'deploy'", 2),
    "train-3": ("for flow 'train'", 3),
    "healthy": ("is live on", 3),
    "drill-train": ("for flow 'train'", 4),
    "drill-release": ("for flow 'release'", 4),
    "drill-deploy": ("for flow 'deploy'", 4),
    "spoiled-live": ("is live on", 4),
    "further-alarms": ("for flow 'rollback'", 1),
}
# A rotation kills neighbours one moment after the other: a worker is not looked for while its fleet starts.
VICTIMS = ("mlflow", "worker", "prefect", "monitor", "victoria-metrics", "fleet", "prefect-worker", "keeper", "engine")


@dataclass(frozen=True)
class Blow:
    """Kill ``victim`` at ``moment``."""

    moment: str
    victim: str


@dataclass(frozen=True)
class Run:
    """What a run of the demo gave."""

    status: int
    output: str
    struck: list[Blow] = field(default_factory=list)
    missed: list[Blow] = field(default_factory=list)  # the victim did not live then


def _is_now(moment: str, lines: Sequence[str]) -> bool:
    """Whether the last line is what a moment begins with."""
    words, occurrence = MOMENTS[moment]
    return words in lines[-1] and sum(words in line for line in lines) == occurrence


def last_word(output: str) -> str:
    """The error that a user saw."""
    errors = [line for line in output.splitlines() if re.match(r"\w+Error: ", line)]
    return errors[-1][:300] if errors else f"NO CLEAR WORD: {output[-300:]}"


class Stack:
    """A state folder with its stack, driven by the commands that a user types."""

    def __init__(self, home: Path, *, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self._prefix = tuple(prefix)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
        # Log lines reach the demo's output at once, so that a blow falls in the moment that it names.
        self.environment = own | {"TREERING_HOME": str(home), "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.1"}
        self.environment |= environment or {}
        self._shared: set[str] = set()

    def flows(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [*COMMAND, *arguments]
        return subprocess.run(
            command, cwd=REPOSITORY, env=self.environment, capture_output=True, text=True, check=False, timeout=300
        )

    def pipeline(self, blows: Sequence[Blow] = (), *, at: Mapping[str, Callable[[], object]] | None = None) -> Run:
        """Run the pipeline by ``flows demo``, with blows, or whatever else, at their moments."""
        command = [
            *self._prefix,
            *COMMAND,
            "demo",
            "--recipe",
            f"recipes.{MODEL}",
            "--backend",
            "eager",
            "--ports",
            "free",
            "--keep",
        ]
        lines: list[str] = []
        struck: list[Blow] = []
        missed: list[Blow] = []
        with subprocess.Popen(
            command, cwd=REPOSITORY, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                for blow in blows:
                    if _is_now(blow.moment, lines):
                        (struck if self.strike(blow.victim) else missed).append(blow)
                        lines.append(f"--- {blow.victim} killed ---\n")
                for moment, act in (at or {}).items():
                    if _is_now(moment, lines):
                        act()
        return Run(process.wait(), "".join(lines), struck, missed)

    def strike(self, victim: str) -> bool:
        """kill -9: servers with their helper processes, everything else alone; whether there was anything to kill.

        A keeper is started again at once, as by a person: nobody else does.
        """
        self._note_shared()
        pids = self.pids(victim)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if victim == "keeper":
            self.flows("up", "--ports", "free")
        return bool(pids)

    def pids(self, victim: str) -> list[int]:
        if victim == "engine":
            return [process.pid for process in self.processes() if "PREFECT__FLOW_RUN_ID" in process.environ()]
        if victim == "worker":
            return self._first_worker()
        leaders = [row["pid"] for row in self._records(victim) if row["running"]]
        if victim in ("mlflow", "prefect"):
            return [process.pid for process in self.processes() if os.getpgid(process.pid) in leaders]
        return leaders

    def _first_worker(self) -> list[int]:
        with suppress(ValueError, httpx.HTTPError):  # no fleet, or one that is on its way up
            pid = self.fleet()["workers"][0]["pid"]
            return [pid] if pid else []
        return []

    def _records(self, victim: str) -> list[dict[str, Any]]:
        name = f"{victim}-{MODEL}" if victim in ("fleet", "monitor") else victim
        return [row for row in json.loads(self.flows("status", "--json").stdout) if row["name"] == name]

    def processes(self) -> list[psutil.Process]:
        """Everything alive that belongs to this stack."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get("TREERING_STACK") == str(self.home):
                    found.append(process)
        return found

    def _note_shared(self) -> None:
        """Keep the names of the shared-memory segments that anything of this stack maps now."""
        for process in self.processes():
            with suppress(psutil.Error, OSError):
                self._shared |= {row.path for row in process.memory_maps() if row.path.startswith("/dev/shm/")}

    def fleet(self) -> dict[str, Any]:
        (record,) = self._records("fleet")
        found: dict[str, Any] = httpx.get(record["url"], timeout=30.0).json()
        return found

    @property
    def server(self) -> Server:
        addresses = json.loads((self.home / "stack" / "addresses.json").read_text())
        return Server(uri=addresses["mlflow"], home=self.home)

    def prefect(self, path: str, body: dict[str, Any]) -> Any:
        addresses = json.loads((self.home / "stack" / "addresses.json").read_text())
        return httpx.post(addresses["prefect"] + path, json=body, timeout=30.0).raise_for_status().json()

    def until(self, question: str, answer: Any, timeout_s: float = 90.0) -> None:
        """Wait for a condition; raise with its name when it does not come."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with suppress(httpx.HTTPError, registry.RegistryError, ValueError, psutil.Error, KeyError):
                if answer():
                    return
            time.sleep(0.25)
        raise AssertionError(f"not within {timeout_s} s: {question}")

    def check_running(self) -> None:
        """Everything is back, and nothing is half published, half promoted or torn."""
        self.until("every service runs", lambda: self.flows("status").returncode == 0)
        self.until("MLflow answers", lambda: self.server.versions(MODEL) is not None)
        entries = registry.history(MODEL, server=self.server)  # raises when its chain is broken
        versions = self.server.versions(MODEL)
        cache = self.home / "checked"
        for version in versions:
            folder = registry.fetch(version.reference, cache=cache, server=self.server)
            assert ckpt.verify(folder, root=version.root).ok
        live = registry.live(entries, "champion")
        if live is not None:
            assert live.root in {version.root for version in versions}
            self.until(
                f"the fleet serves {live.root}",
                lambda: {worker["root"] for worker in self.fleet()["workers"]} == {live.root},
            )
            registry.sync(MODEL, server=self.server)
            assert self.server.alias(MODEL, "champion") == live.version

    def check_down(self) -> None:
        """``down`` leaves no process, port, shared memory, temporary folder or lock."""
        ports = {
            connection.laddr.port
            for process in self.processes()
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        self._note_shared()
        done = self.flows("down")
        assert done.returncode == 0, done.stderr
        assert self.processes() == []
        listening = {
            connection.laddr.port for connection in psutil.net_connections("tcp") if connection.status == "LISTEN"
        }
        assert not ports & listening
        assert self.litter() == []

    def litter(self) -> list[str]:
        """Temporary things in the state folder, and segments of shared memory that its processes have mapped."""
        here = [
            path
            for path in self.home.rglob("*")
            if re.search(r"\.saving$|\.partial-|\.draft-|incoming-|\.process\.json$|^\.token\.", path.name)
        ]
        here += [*(self.home / "tmp").glob("*"), *(self.home / "cache" / "work").glob("*/")]
        here += [segment for segment in map(Path, self._shared) if segment.exists()]
        return [str(path) for path in here]
