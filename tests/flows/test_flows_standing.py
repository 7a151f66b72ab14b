"""What ``status`` says of a model."""

import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import orjson
import pytest

from flows.stack import Record
from flows.stack.process import _start_of
from flows.standing import as_line, standing

STATUS = {
    "alias": "champion",
    "desired": {"version": "3", "root": "sha256:ab"},
    "problem": None,
    "workers": [{"version": "3"}, {"version": "2"}],
}


@pytest.fixture
def fleet_url() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(orjson.dumps(STATUS))

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def record(name: str, url: str) -> Record:
    """A record of a living process: this one."""
    return Record(name=name, pid=os.getpid(), started=_start_of(os.getpid()), url=url, log="")


def test_a_fleet_says_what_its_model_is_and_who_is_behind(fleet_url: str, tmp_path: Path) -> None:
    facts = standing(record("fleet-mnist", fleet_url), tmp_path)

    assert facts is not None
    assert (facts["model"], facts["version"], facts["workers"]) == ("mnist", "3", ["3", "2"])
    assert as_line(facts) == "mnist@champion     v3 on 1 of 2 workers, not monitored"


def test_a_fleet_that_does_not_answer_is_no_error_of_status(tmp_path: Path) -> None:
    facts = standing(record("fleet-mnist", "http://127.0.0.1:9"), tmp_path)

    assert facts is not None
    assert as_line(facts).startswith("mnist@?            no answer, not monitored: ")


def test_what_is_no_fleet_stands_for_no_model(fleet_url: str, tmp_path: Path) -> None:
    assert standing(record("mlflow", fleet_url), tmp_path) is None
