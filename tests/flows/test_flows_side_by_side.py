"""Two models on one stack at once, by the commands that a user types: each has its own of everything.

Wine goes through the whole pipeline, its drill and a real alarm included; beside it a text model without a drill, so
that it can be seen that the other's alarm moved nothing here. The text model is MiniLM cut to its first layer, from a
module of one's own, and both run by the eager backend: how long a model computes is not the matter.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer

import ckpt
import registry
from recipes import minilm
from registry.server import Server
from serving.client import Client

OWN = Path(__file__).resolve().parent / "own"  # recipes of one's own
REPOSITORY = OWN.parent.parent.parent
MODELS = {"wine": ("recipes.wine", "true"), "texts": ("texts", "false")}  # recipe, and whether with a drill
pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Pair:
    home: Path
    environment: dict[str, str]

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=REPOSITORY, env=self.environment, capture_output=True, text=True, check=False, timeout=1000
        )

    def pipeline(self, model: str) -> None:
        recipe, drill = MODELS[model]
        parameters = {"recipe": recipe, "backend": "eager", "drill": drill}
        options = [option for item in parameters.items() for option in ("--param", "=".join(item))]
        command = [sys.executable, "-m", "prefect", "deployment", "run", "pipeline/default", *options, "--watch"]
        done = self.run(*command)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def status(self) -> dict[str, Any]:
        done = self.run(sys.executable, "-m", "flows", "status", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return {row["name"]: row for row in json.loads(done.stdout)}

    def summary(self, model: str) -> dict[str, Any]:
        (path,) = (self.home / "runs" / model).glob("pipeline-*/summary.json")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def history(self, model: str) -> tuple[registry.Entry, ...]:
        return registry.history(model, server=self.server)

    @property
    def server(self) -> Server:
        return Server(uri=self.environment["MLFLOW_TRACKING_URI"], home=self.home)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("home")
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_", "TREERING_"))}
    made = Pair(home=home, environment={**own, "TREERING_HOME": str(home), "PYTHONPATH": str(OWN)})
    flows = (sys.executable, "-m", "flows")
    try:
        up = made.run(*flows, "up", "--ports", "free")
        assert up.returncode == 0, up.stdout + up.stderr
        lines = (line.removeprefix("export ").partition("=") for line in made.run(*flows, "env").stdout.splitlines())
        made.environment.update({name: value.strip("'") for name, _, value in lines if name != "PATH"})
        with ThreadPoolExecutor(len(MODELS)) as pool:
            list(pool.map(made.pipeline, MODELS))
        yield made
    finally:
        assert made.run(*flows, "down").returncode == 0


def test_both_ran_at_the_same_time(pair: Pair) -> None:
    url = f"{pair.environment['PREFECT_API_URL']}/flow_runs/filter"

    wine, text = httpx.post(url, json={"flows": {"name": {"any_": ["pipeline"]}}}, timeout=30.0).json()

    assert {wine["parameters"]["recipe"], text["parameters"]["recipe"]} == {"recipes.wine", "texts"}
    assert max(wine["start_time"], text["start_time"]) < min(wine["end_time"], text["end_time"])


def test_each_has_its_own_versions_and_deltas(pair: Pair) -> None:
    wine, text = (pair.summary(model)["versions"] for model in MODELS)

    assert [(row["version"], row["kind"]) for row in text] == [(1, "full"), (2, "delta"), (3, "delta")]
    assert [(row["version"], row["kind"]) for row in wine[:3]] == [(1, "full"), (2, "delta"), (3, "delta")]
    assert all(row["requests"] > 0 and row["failed_requests"] == 0 for row in (*wine, *text))
    assert text[1]["sent_bytes"] < text[1]["full_bytes"] / 1000  # a head of 2,310 weights
    assert pair.summary("texts")["rejected"]["out-of-range"] > 0


def test_the_alarm_of_one_moved_its_own_alias_only(pair: Pair) -> None:
    wine, text = (pair.history(model) for model in MODELS)

    assert [entry.action for entry in wine if entry.action != "nothing"] == ["promote"] * 4 + ["rollback"]
    assert "anomaly score" in next(entry for entry in wine if entry.action == "rollback").reason
    assert [entry.action for entry in text] == ["promote"] * 3
    assert [pair.server.alias(model, "champion") for model in MODELS] == [3, 3]


def test_each_has_its_own_fleet_and_its_own_monitor(pair: Pair) -> None:
    found = pair.status()

    for model in MODELS:
        serves = found[f"fleet-{model}"]["serves"]
        assert (serves["model"], serves["alias"], serves["workers"]) == (model, "champion", ["3", "3"])
        assert serves["root"] == pair.summary(model)["versions"][2]["root"]
        assert serves["monitored"]
        assert found[f"monitor-{model}"]["running"]
    assert found["fleet-wine"]["pid"] != found["fleet-texts"]["pid"]


def test_a_text_is_asked_with_the_tokenizer_of_the_version(pair: Pair) -> None:
    folder = registry.fetch("texts@champion", server=pair.server)
    with ckpt.open(folder, verify="sha256") as checkpoint:
        tokenizer = Tokenizer.from_file(str(checkpoint.attachment("tokenizer.json")))
    ids = [id for id in tokenizer.encode("Return the shortest path between two nodes of the graph.").ids if id]
    tokens = np.zeros((1, minilm.LENGTH), dtype=np.int64)
    tokens[0, : len(ids)] = ids
    worker = httpx.get(pair.status()["fleet-texts"]["url"]).json()["workers"][0]["url"]

    with Client(worker, model="texts") as client:
        reply = client.infer({"tokens": tokens})

    assert reply.root == checkpoint.root
    assert minilm.LABELS[int(reply.outputs["output"].argmax())] == "networkx"


def test_an_alarm_of_the_other_moves_that_one_only(pair: Pair) -> None:
    """The last test: it takes the text model back to its second version."""
    suspect = pair.summary("texts")["versions"][2]["root"]
    before = pair.history("wine")

    done = pair.run(
        sys.executable, "-c", f"from flows.rollback import rollback; rollback(model='texts', suspect={suspect!r})"
    )

    assert done.returncode == 0, done.stderr
    assert pair.history("wine") == before
    found = pair.status()
    assert found["fleet-texts"]["serves"]["workers"] == ["2", "2"]
    assert found["fleet-wine"]["serves"]["workers"] == ["3", "3"]
