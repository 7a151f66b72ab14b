"""Each process of the stack is killed once, in two runs of the pipeline on one stack (``soak_kills``: the matrix).

The first run loses its engine and must say so; the second loses everything else, one after the other, and must end
well: it is also the run after the failed one.
"""

from collections.abc import Iterator

import pytest

from tests.flows.killing import MODEL, VICTIMS, Blow, Run, Stack, last_word

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(900)]

SURVIVED = (
    Blow("train", "mlflow"),
    Blow("deploy", "prefect-worker"),
    Blow("train-2", "worker"),
    Blow("release-2", "prefect"),
    Blow("deploy-2", "victoria-metrics"),
    Blow("train-3", "fleet"),
    Blow("drill-train", "monitor"),
    Blow("drill-deploy", "keeper"),
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("home"))
    yield made
    made.flows("down")


@pytest.fixture(scope="module")
def broken_off(stack: Stack) -> Run:
    return stack.pipeline([Blow("release", "engine")])


@pytest.fixture(scope="module")
def survived(stack: Stack, broken_off: Run) -> Run:
    return stack.pipeline(SURVIVED)


def test_a_run_whose_engine_was_killed_says_so_and_tears_nothing(stack: Stack, broken_off: Run) -> None:
    assert broken_off.struck
    assert broken_off.status == 1
    assert "StageError: the pipeline of recipes.wine ended as Crashed" in last_word(broken_off.output)
    stack.check_running()


def test_a_run_survives_the_loss_of_every_other_process(stack: Stack, survived: Run) -> None:
    assert survived.status == 0, survived.output[-6000:]
    assert set(survived.struck) == set(SURVIVED)
    assert {blow.victim for blow in SURVIVED} | {"engine"} == set(VICTIMS)
    (failed,) = [line.split()[2:] for line in survived.output.splitlines() if line.startswith("failed requests")]
    assert failed == ["0", "0", "0", "0"]


def test_afterwards_everything_is_back_and_whole(stack: Stack, survived: Run) -> None:
    stack.check_running()


def test_no_page_shows_a_killed_run_as_running(stack: Stack, survived: Run) -> None:
    running = stack.prefect("/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}})

    assert [run["name"] for run in running] == []
    assert stack.server.unfinished_runs(MODEL) == {}


def test_down_leaves_nothing(stack: Stack, survived: Run) -> None:
    stack.check_down()
