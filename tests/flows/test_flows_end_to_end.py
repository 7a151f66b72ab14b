"""The whole pipeline with real servers and processes, by the command that a user types; then misused.

One stack serves the whole module: MLflow, Prefect, its worker, VictoriaMetrics where installed, a fleet of two.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import ckpt
import registry
from flows.stack import guard
from flows.training_run import next_seed
from registry.server import Server
from tests.browser import CHROMIUM, Browser, browser

REPOSITORY = Path(__file__).resolve().parent.parent.parent
HOSTILE = REPOSITORY / "tests" / "flows" / "hostile"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Stack:
    home: Path
    environment: dict[str, str]
    summary: dict[str, Any]
    output: str

    def flows(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.run(sys.executable, "-m", "flows", *arguments)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=REPOSITORY, env=self.environment, capture_output=True, text=True, check=False, timeout=300
        )

    def api(self, path: str, body: dict[str, Any]) -> Any:
        url, deadline = f"{self.environment['PREFECT_API_URL']}{path}", time.monotonic() + 60.0
        answer = httpx.post(url, json=body, timeout=30.0)
        while (
            answer.status_code == 503 and time.monotonic() < deadline
        ):  # its database is busy: its own client waits too
            time.sleep(0.5)
            answer = httpx.post(url, json=body, timeout=30.0)
        answer.raise_for_status()
        return answer.json()

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.environment['PREFECT_API_URL']}{path}", timeout=30.0).raise_for_status().json()

    def ended(self, run_id: str, *, timeout_s: float = 200.0) -> Any:
        """A flow run, once it has ended."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            run = self.get(f"/flow_runs/{run_id}")
            if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
                return run
            time.sleep(0.5)
        pytest.fail(f"flow run {run_id} has not ended after {timeout_s} s: {run['state_type']}")

    @property
    def server(self) -> Server:
        return Server(uri=self.environment["MLFLOW_TRACKING_URI"], home=self.home)


def variables(text: str) -> dict[str, str]:
    lines = (line.removeprefix("export ").partition("=") for line in text.splitlines())
    return {name: value.strip("'") for name, _, value in lines if name not in ("PATH", "PYTHONPATH")}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("home") / "Größe & Maß, 年輪"  # wherever a command, a URI or a compiler takes a path
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_", "TREERING_"))}
    environment = {**own, "TREERING_HOME": str(home), "PYTHONPATH": str(HOSTILE)}
    command = [sys.executable, "-m", "flows"]
    demo = [
        *command,
        "demo",
        "--recipe",
        "recipes.wine",
        "--ports",
        "free",
        "--keep",
        "--json",
        str(home / "summary.json"),
    ]
    try:
        done = subprocess.run(
            demo, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=500
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        shell = subprocess.run(
            [*command, "env"], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
        )
        yield Stack(
            home=home,
            environment=environment | variables(shell.stdout),
            summary=json.loads((home / "summary.json").read_text()),
            output=done.stdout,
        )
    finally:
        subprocess.run([*command, "down"], cwd=REPOSITORY, env=environment, check=True, timeout=120)
        assert [process for process in psutil.process_iter() if str(home) in _environment(process)] == []


def _environment(process: psutil.Process) -> str:
    try:
        return process.environ().get("TREERING_STACK", "")
    except (psutil.Error, OSError):
        return ""


def test_four_versions_were_made_and_no_request_failed(stack: Stack) -> None:
    rows = stack.summary["versions"]

    assert [row["plan"] for row in rows] == ["full", "head", "steps", "full"]
    assert [row["kind"] for row in rows] == ["full", "delta", "delta", "delta"]
    assert all(row["failed_requests"] == 0 for row in rows)
    assert all(row["sent_bytes"] < row["full_bytes"] / 50 for row in rows[1:])
    assert all(row["update_pause_seconds"] > 0 for row in rows[1:])
    assert stack.summary["checked_answers"] > 500
    assert len({row["root"] for row in rows}) == 4


def test_the_fault_was_seen_and_rolled_back_once(stack: Stack) -> None:
    drill = stack.summary["drill"]
    entries = registry.history("wine", server=stack.server)
    spoiled = stack.summary["versions"][3]["root"]

    assert "anomaly score" in drill["reason"]
    assert drill["back_at_version"] == 3
    assert drill["moved_by_further_alarms"] == 0
    assert [entry.action for entry in entries if entry.action != "nothing"] == ["promote"] * 4 + ["rollback"]
    assert entries[4].quarantined == spoiled
    assert "anomaly score" in entries[4].reason
    assert entries[4].actor == "monitor"


def test_the_event_started_a_rollback_that_found_nothing_to_do(stack: Stack) -> None:
    runs = stack.api("/flow_runs/filter", {"flows": {"name": {"any_": ["rollback"]}}})

    by_event = [run for run in runs if run["deployment_id"]]

    assert len(by_event) == 1
    assert by_event[0]["state_type"] == "COMPLETED"
    assert by_event[0]["parameters"]["event"]["suspect_root"] == stack.summary["versions"][3]["root"]


def test_the_fleet_serves_what_the_alias_names(stack: Stack) -> None:
    (line,) = [line for line in stack.output.splitlines() if "fleet-wine" in line]
    status = httpx.get(line.split()[1]).json()

    good = stack.summary["versions"][2]["root"]
    assert status["converged"]
    assert {worker["root"] for worker in status["workers"]} == {good}
    assert len(status["workers"]) == 2
    assert registry.resolve("wine@champion", server=stack.server).root == good
    assert stack.server.alias("wine", "champion") == 3


def test_each_version_is_fetched_and_proved_from_nothing(stack: Stack, tmp_path: Path) -> None:
    for row in stack.summary["versions"]:
        folder = registry.fetch(f"wine/{row['version']}", cache=tmp_path, server=stack.server)
        assert ckpt.verify(folder, root=row["root"]).ok


def test_versions_carry_their_program_and_where_they_come_from(stack: Stack) -> None:
    versions = stack.server.versions("wine")

    programs = {version.tags["treering.program"] for version in versions}

    assert len(programs) == 1
    assert all(version.tags["treering.flow_run"] for version in versions)
    assert versions[3].tags["treering.forced"].startswith("a drill")
    assert "treering.quarantined" in versions[3].tags


def test_status_lists_every_process_of_the_stack(stack: Stack) -> None:
    done = stack.flows("status", "--json")

    names = {row["name"] for row in json.loads(done.stdout) if row["running"]}
    assert done.returncode == 0
    assert {"mlflow", "prefect", "prefect-worker", "keeper", "fleet-wine", "monitor-wine"} <= names


def test_a_second_up_finds_everything_running(stack: Stack) -> None:
    before = {row["name"]: row["pid"] for row in json.loads(stack.flows("status", "--json").stdout)}
    own = {
        key: value for key, value in stack.environment.items() if key not in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")
    }

    done = subprocess.run(
        [sys.executable, "-m", "flows", "up"], cwd=REPOSITORY, env=own, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert {row["name"]: row["pid"] for row in json.loads(stack.flows("status", "--json").stdout)} == before


# --- misuse: each runs a flow in this process's stack and must fail with a clear word, leaving everything as it was ---

MISUSES = {
    "unknown recipe": (
        "from flows.ingest import ingest; ingest('recipes.nothing')",
        "UnknownRecipeError",
    ),
    "missing data file": (
        "from flows.ingest import ingest; ingest('recipes.wine', source='/nowhere.csv')",
        "SourceNotFoundError",
    ),
    "a version that does not exist": (
        "from flows.deploy import deploy; deploy('wine', 99)",
        "'wine/99' names no version: found versions 1, 2, 3, 4",
    ),
    "a quarantined version": (
        "from flows.deploy import deploy; deploy('wine', 4)",
        "is quarantined",
    ),
    "a model nobody deployed": (
        "from flows.watch import watch; watch('nobody', '/nowhere')",
        "no fleet serves 'nobody'",
    ),
    "a rollback of nothing": (
        "from flows.rollback import rollback; rollback()",
        "rollback needs model and suspect",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_answered_clearly_and_changes_nothing(name: str, stack: Stack) -> None:
    code, words = MISUSES[name]
    before = registry.history("wine", server=stack.server)

    done = stack.run(sys.executable, "-c", code)

    assert done.returncode == 1
    assert words in done.stderr
    assert registry.history("wine", server=stack.server) == before


def test_weights_below_the_gate_are_held_back(stack: Stack) -> None:
    code = """
from flows.ingest import ingest
from flows.train import train
from flows.release import release
data = ingest("recipes.wine")
spoiled = train("recipes.wine", data.folder, plan="full", seed=5, shuffled_labels=True)
release("recipes.wine", data.folder, spoiled.folder, backend="eager")
"""

    done = stack.run(sys.executable, "-c", code)

    assert done.returncode == 1
    assert "GateError: 'wine' is not released: accuracy is" in done.stderr
    assert len(stack.server.versions("wine")) == 4
    assert next_seed("wine", server=stack.server) == 6  # a run of the pipeline does not train the refused weights again


def test_a_wrong_request_is_told_what_is_wrong(stack: Stack) -> None:
    (line,) = [line for line in stack.output.splitlines() if "fleet-wine" in line]
    url = httpx.get(line.split()[1]).json()["workers"][0]["url"]
    body = {"inputs": [{"name": "input", "shape": [1, 12], "datatype": "FP32", "data": [0.0] * 12}]}

    answer = httpx.post(f"{url}/v2/models/wine/infer", json=body)

    assert answer.status_code == 400
    assert "12" in answer.json()["error"]
    assert "13" in answer.json()["error"]


# --- the guard: docs/decisions/0006-the-guard.md ----------------------------------------------------------------------


def test_the_demo_ran_without_unpickling_or_leaving_the_machine(stack: Stack) -> None:
    (line,) = [line for line in stack.output.splitlines() if "processes guarded" in line]

    count, words = line.split(" ", 1)

    assert int(count) >= 8
    assert words == "processes guarded: 0 unpickled, 0 connections to other machines."


def test_what_prefect_keeps_of_failed_runs_is_no_pickle(stack: Stack) -> None:
    done = stack.run(sys.executable, "-c", MISUSES["missing data file"][0])
    assert done.returncode == 1

    kept = [file.read_text() for file in (stack.home / "prefect" / "storage").iterdir()]

    assert len(kept) >= 1
    assert all("__exc_type__" in text for text in kept), "an exception as JSON; a pickle would stand here in base64"


def test_every_living_python_process_is_armed(stack: Stack) -> None:
    done = stack.flows("guard", "--json")
    told = {row["pid"]: row for row in json.loads(done.stdout)["processes"]}

    living = [process for process in psutil.process_iter() if _environment(process) == str(stack.home)]

    armed = stack.home / "stack" / "guard" / "armed"
    assert {process.pid for process in living} == set(told)
    for process in living:
        if Path(process.exe()).name.startswith("python"):
            line = json.loads((armed / f"{process.pid}.json").read_text())
            assert line["pid"] == process.pid
            assert told[process.pid]["armed"] is True
    assert {"mlflow", "prefect", "prefect-worker", "fleet-wine"} <= {row["role"] for row in told.values()}
    ended = [json.loads(file.read_text()) for file in armed.iterdir()]
    assert any("prefect.engine" in line["argv"] for line in ended), "the pipeline's own process was"


def test_a_process_of_each_kind_refuses_to_unpickle(stack: Stack) -> None:
    """What has the very environment of a living process meets the same guard."""
    kinds = {row.role: psutil.Process(row.pid) for row in guard.standings(stack.home) if row.armed}
    assert len(kinds) >= 4

    for role, process in kinds.items():
        command = [process.exe(), "-c", "import pickle; pickle.loads(b'cos\\nsystem\\n.')"]
        done = subprocess.run(
            command, env=process.environ(), cwd=process.cwd(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert f"RefusedError: {role} (process" in done.stderr


ACTS = {
    "unpickle": ("recipe_on_request", "pickle.find_class", "recipe_on_request.py"),
    "unmarshal": ("recipe_on_request", "marshal.loads", "recipe_on_request.py"),
    "stored-result": ("recipe_on_request", "pickle.find_class", "prefect/serializers.py"),
    "": ("recipe_that_unpickles", "pickle.find_class", "recipe_that_unpickles.py"),
}


def test_a_flow_run_that_would_unpickle_is_refused_and_recorded(stack: Stack) -> None:
    """On the real worker, in the engine's own process; the runs go side by side."""
    deployment = stack.get("/deployments/name/ingest/default")
    asked_at = time.monotonic()

    runs = {
        act: stack.api(
            f"/deployments/{deployment['id']}/create_flow_run", {"parameters": {"recipe": recipe, "source": act}}
        )
        for act, (recipe, _, _) in ACTS.items()
    }
    ended = {act: stack.ended(run["id"]) for act, run in runs.items()}

    found = guard.findings(stack.home, since=asked_at)
    for act, (_, event, file) in ACTS.items():
        assert ended[act]["state_type"] == "FAILED", act
        assert any(item.event == event and any(file in line for line in item.stack) for item in found), act
    assert {item.role for item in found} == {"prefect-worker"}
    assert not (stack.home / "marker").exists()
    told = stack.flows("guard")
    assert told.returncode == 1
    assert "prefect-worker (process" in told.stdout


PT_FILES = """
import json, os, sys, torch
from pathlib import Path
import ckpt, ingest, monitors, registry
from flows.deploy import deploy
from flows.ingest import ingest as take
from flows.release import release
from flows.train import train
from flows.watch import watch

home = Path(sys.argv[1])

class Payload:
    def __reduce__(self):
        return os.mkdir, (str(home / "marker"),)

place = home / "weights.pt"
torch.save({"weights": Payload()}, place)
beside = home / "a-folder"
beside.mkdir()
torch.save({"weights": Payload()}, beside / "manifest.pb")
dataset = take("recipes.wine").folder
calls = {
    "a start of training": lambda place: train("recipes.wine", dataset, start=place),
    "weights to release": lambda place: release("recipes.wine", dataset, place, backend="eager"),
    "a source of rows": lambda place: take("recipes.wine", source=place),
    "a data set": lambda place: train("recipes.wine", place),
    "a detector": lambda place: watch("wine", place, seconds=1),
}
told = {}
for name, call in calls.items():
    for path in (place, beside):
        try:
            call(str(path))
        except Exception as error:
            told[f"{name}: {path.name}"] = f"{type(error).__name__}: {error}"
print(json.dumps(told))
"""


@pytest.mark.slow
def test_a_pt_file_is_taken_for_nothing(stack: Stack) -> None:
    """Without a guard: nothing of ours would unpickle it anyway."""
    done = stack.run(sys.executable, "-c", PT_FILES, str(stack.home))

    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert {name: words.split(":")[0] for name, words in told.items()} == {
        "a start of training: weights.pt": "NotACheckpointError",
        "a start of training: a-folder": "FormatError",
        "weights to release: weights.pt": "NotACheckpointError",
        "weights to release: a-folder": "FormatError",
        "a source of rows: weights.pt": "AllRowsRejectedError",
        "a source of rows: a-folder": "SourceNotFoundError",
        "a data set: weights.pt": "DatasetNotFoundError",
        "a data set: a-folder": "DatasetNotFoundError",
        "a detector: weights.pt": "NotACheckpointError",
        "a detector: a-folder": "FormatError",
    }
    assert not (stack.home / "marker").exists()


# --- what a person sees, in a real browser ----------------------------------------------------------------------------

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing; SYSTEM_DEPS=1 make system-deps")


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path / "profile") as one:  # an open page keeps a processor busy
        yield one


@needs_chromium
def test_a_person_finds_a_version_with_its_root_in_mlflow(stack: Stack, person: Browser) -> None:
    row = stack.summary["versions"][2]

    text = person.open(f"{stack.environment['MLFLOW_TRACKING_URI']}/#/models/wine/versions/3", row["root"])

    assert "treering.kind" in text
    assert "smaller than a full copy" in text


@needs_chromium
def test_a_person_finds_the_run_and_its_stages_in_prefect(stack: Stack, person: Browser) -> None:
    address = stack.environment["PREFECT_API_URL"].removesuffix("/api")
    (run,) = stack.api("/flow_runs/filter", {"flows": {"name": {"any_": ["pipeline"]}}})

    person.open(f"{address}/runs/flow-run/{run['id']}", "pipeline of recipes.wine", "Completed")
    person.click("Subflow Runs", "train recipes.wine by plan steps", "deploy wine version 4", "rollback wine")
    text = person.open(
        f"{address}/artifacts/key/pipeline-wine", "what the pipeline measured", "pipeline of recipes.wine"
    )

    assert "Flow run" in text


@needs_chromium
def test_a_person_finds_why_a_version_was_taken_back_in_prefect(stack: Stack, person: Browser) -> None:
    address = stack.environment["PREFECT_API_URL"].removesuffix("/api")
    runs = stack.api("/flow_runs/filter", {"flows": {"name": {"any_": ["rollback"]}}})
    (by_event,) = [run for run in runs if run["deployment_id"]]

    text = person.open(f"{address}/runs/flow-run/{by_event['id']}", "nothing to do", "anomaly score")

    assert "margin_mean" in text


# --- the last one: it stops the stack ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_served_and_watched_is_so_again_after_down_and_up(stack: Stack) -> None:
    (before,) = [row["serves"] for row in json.loads(stack.flows("status", "--json").stdout) if row["serves"]]

    assert stack.flows("down").returncode == 0
    assert stack.flows("up", "--ports", "free").returncode == 0

    (after,) = [row["serves"] for row in json.loads(stack.flows("status", "--json").stdout) if row["serves"]]
    assert after == before
    assert (after["version"], after["monitored"]) == ("3", True)
