"""Other people's servers: what the environment names is asked before anything starts, and used; no secret is shown."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from flows import stack
from flows.__main__ import main
from flows.errors import ForeignServerError, StackError
from flows.settings import stack_name
from flows.stack import environment, foreign
from flows.stack.process import Service, launch, records, stop
from tests.web import Answer, web_server

VARIABLES = [kind.variable for kind in foreign.KINDS.values()]
SECRETS = (
    *("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    *("PREFECT_API_AUTH_STRING", "PREFECT_API_KEY"),
    *("TREERING_VICTORIAMETRICS_USERNAME", "TREERING_VICTORIAMETRICS_PASSWORD"),
)
GOOD = {"/ml/version": "3.17.2", "/api/admin/version": '"3.9.1"', "/api/v1/export": ""}
LET_IN = "Basic YW5uOnBAc3Mvdw=="  # ann:p@ss/w
INSIDE = "ann:p%40ss%2Fw@"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is named; what a test's call puts into the environment is taken out again."""
    for variable in (*VARIABLES, *SECRETS):
        monkeypatch.setenv(variable, "")


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves texts by path to who is let in; gives host:port."""
    with ExitStack() as servers:
        yield lambda texts, only="": servers.enter_context(web_server(_letting_in(texts, only)))


def _letting_in(texts: dict[str, str], only: str) -> Answer:
    def answer(path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        if only and headers.get("Authorization") != only:
            return 401, "who are you"
        return (200, texts[path]) if path in texts else (404, "nothing here")

    return answer


def name_all(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{host}/ml/")
    monkeypatch.setenv("PREFECT_API_URL", f"http://{host}/api")
    monkeypatch.setenv("TREERING_VICTORIAMETRICS_URL", f"http://{host}")


def test_servers_of_the_environment_are_used_and_not_started(
    serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = serve(GOOD, only=LET_IN)
    name_all(monkeypatch, INSIDE + host)
    said: list[str] = []

    addresses = stack.up(tmp_path, say=said.append)

    assert addresses == environment.Addresses(
        mlflow=f"http://{host}/ml",
        prefect=f"http://{host}/api",
        victoria=f"http://{host}",
        foreign=("mlflow", "prefect", "victoria"),
    )
    assert records(tmp_path) == []
    assert [line.split()[-1] for line in said] == ["(yours)"] * 3
    assert os.environ["MLFLOW_TRACKING_URI"] == f"http://{host}/ml"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == os.environ["TREERING_VICTORIAMETRICS_PASSWORD"] == "p@ss/w"
    assert os.environ["PREFECT_API_AUTH_STRING"] == "ann:p@ss/w"
    written = "".join(file.read_text() for file in (tmp_path / "stack").iterdir())
    assert not any(secret in text for secret in ("p@ss/w", "p%40ss") for text in (written, *said))
    assert stack.up(tmp_path, say=said.append) == addresses


WRONG = {
    "no answer": (
        {},
        "MLFLOW_TRACKING_URI",
        "http://127.0.0.1:9",
        "found no answer .* expected a running MLflow server",
    ),
    "no address": ({}, "MLFLOW_TRACKING_URI", "127.0.0.1:9", "MLFLOW_TRACKING_URI names 127.0.0.1:9: found no answer"),
    "an old MLflow": (
        {"/version": "2.22.1"},
        "MLFLOW_TRACKING_URI",
        "http://HOST",
        "found MLflow 2.22.1, expected MLflow 3",
    ),
    "no MLflow": (GOOD, "MLFLOW_TRACKING_URI", "http://HOST", "found status 404 and no version, .* http://HOST/PREFIX"),
    "the page of Prefect": (
        {**GOOD, "/admin/version": "<html>"},
        "PREFECT_API_URL",
        "http://HOST",
        "PREFECT_API_URL .* no version, .* its address is http://HOST:PORT/api",
    ),
    "another Prefect": ({"/api/admin/version": '"2.20.3"'}, "PREFECT_API_URL", "http://HOST/api", "expected Prefect 3"),
    "no VictoriaMetrics": (
        {},
        "TREERING_VICTORIAMETRICS_URL",
        "http://HOST",
        "found status 404 to /api/v1/export, expected VictoriaMetrics",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_server_that_cannot_be_used_stops_an_up_before_anything_is_started(
    name: str, serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, variable, address, words = WRONG[name]
    monkeypatch.setenv(variable, address.replace("HOST", serve(texts)))

    with pytest.raises(ForeignServerError, match=words):
        stack.up(tmp_path, free_ports=True, say=lambda _: None)

    assert records(tmp_path) == []
    assert stack.read(tmp_path) is None


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("password", ["wr0ng", ""])
def test_a_wrong_password_names_the_variables_and_is_not_shown(
    variable: str, password: str, serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = serve(GOOD, only=LET_IN)
    name_all(monkeypatch, INSIDE + host)
    path = {"MLFLOW_TRACKING_URI": "/ml", "PREFECT_API_URL": "/api"}.get(variable, "")
    monkeypatch.setenv(variable, f"http://ann:{password}@{host}{path}" if password else f"http://{host}{path}")

    with pytest.raises(ForeignServerError, match=f"{variable} .* found status 401 with (no|the) credentials") as raised:
        stack.up(tmp_path, say=lambda _: None)

    assert any(secret in str(raised.value) for secret in SECRETS)
    assert "wr0ng" not in str(raised.value)


def test_a_variable_that_names_the_stacks_own_server_names_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell that evaluated 'python -m flows env' still has the variables when the stack is down."""
    choose = {"home": tmp_path, "free": True, "with_victoria": True}
    before = environment.choose(**choose, running=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", before.mlflow)

    assert environment.choose(**choose, running=True) == before
    assert environment.choose(**choose, running=False) == before
    environment.forget(tmp_path)
    assert environment.choose(**choose, running=False).foreign == ()


def test_another_server_than_the_running_stacks_is_refused(
    serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.choose(tmp_path, free=True, with_victoria=False, running=False)
    sleeper = Service(name="s", command=("sleep", "60"), url="", ready=lambda: True, environment=dict(os.environ))
    record = launch(sleeper, tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{serve(GOOD)}/ml")

    try:
        with pytest.raises(StackError, match=r"MLFLOW_TRACKING_URI names .*/ml, but the stack of .* flows down"):
            stack.up(tmp_path, say=lambda _: None)
    finally:
        stop(record, tmp_path)


def test_what_a_shell_set_itself_is_not_overwritten(
    serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = serve(GOOD, only=LET_IN)
    name_all(monkeypatch, INSIDE + host)
    stack.up(tmp_path, say=lambda _: None)
    monkeypatch.setenv("TREERING_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{INSIDE}{host}/ml")
    monkeypatch.delenv("PREFECT_API_URL")

    assert main(["env"]) == 0

    text = capsys.readouterr().out
    assert "MLFLOW_TRACKING_URI" not in text
    assert f"PREFECT_API_URL=http://{host}/api" in text
    assert "p@ss" not in text
    assert "p%40ss" not in text


def test_stacks_on_one_server_have_pools_and_deployments_of_their_own(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    own = environment.Addresses(mlflow="", prefect="http://127.0.0.1:4200/api", victoria=None)
    shared = environment.Addresses(mlflow="", prefect="http://prefect/api", victoria=None, foreign=("prefect",))

    assert (environment.pool(one, own), environment.deployment(one, own)) == ("treering-local", "default")
    assert environment.pool(one, shared) == environment.deployment(one, shared) == stack_name(one)
    assert stack_name(one) != stack_name(two)
    assert environment.variables(one, shared)["TREERING_POOL"] == stack_name(one)
    assert environment.variables(one, shared)["TREERING_DEPLOYMENT"] == stack_name(one)
