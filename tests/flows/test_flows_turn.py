"""Pipelines of one model take turns; a turn ends with its process."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import pytest
from prefect.artifacts import Artifact

from flows.artifacts import artifact_key
from flows.turn import turn


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TREERING_HOME", str(tmp_path))
    return tmp_path


def test_the_second_pipeline_of_a_model_waits_and_says_so() -> None:
    said: Queue[str] = Queue()
    order: list[str] = []

    def second() -> None:
        with turn("mnist", say=said.put):
            order.append("second")

    with ThreadPoolExecutor(1) as pool:
        with turn("mnist", say=said.put):
            waiting = pool.submit(second)
            words = said.get(timeout=60)
            order.append("first")
        waiting.result(timeout=60)

    assert words == "another pipeline of 'mnist' is running: this one goes on when that has ended"
    assert order == ["first", "second"]
    assert said.empty()


def test_another_model_does_not_wait() -> None:
    said: list[str] = []

    with turn("mnist", say=said.append), turn("wine", say=said.append):
        assert said == []


def test_a_killed_pipeline_leaves_its_turn_to_the_next(home: Path) -> None:
    hold = "with turn('mnist', say=print): print('mine', flush=True); time.sleep(600)"
    code = f"import time\nfrom flows.turn import turn\n{hold}"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"mine\n"
    said: list[str] = []

    holder.kill()
    holder.wait()
    holder.stdout.close()
    with turn("mnist", say=said.append):
        pass

    assert said == []


@pytest.mark.parametrize("model", ["mnist", "My_Model", "münchen 2", "a.b"])
def test_every_models_name_gives_a_key_that_prefect_takes(model: str) -> None:
    key = artifact_key("pipeline", model)

    assert Artifact(key=key, type="markdown").key == key
    assert key.startswith("pipeline-")
