"""A server that is away for a while, or that carries out a call and ends before it answers: nothing appears twice."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import torch

import ckpt
import registry
from registry.patience import QUICK_TRIES, Tries
from registry.server import Server

pytestmark = pytest.mark.integration


@dataclass
class Line:
    """A line to a real server that can be cut, before a request went through or after."""

    url: str = ""
    lose: str = ""  # the answer to the first request that matches is lost
    cut: int = 0  # so many requests do not go through


@contextmanager
def line_to(target: str) -> Iterator[Line]:
    line, lock = Line(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            with lock:
                dropped = line.cut > 0
                line.cut -= dropped
                lost = bool(line.lose and re.search(line.lose, f"{self.command} {path}"))
                line.lose = "" if lost else line.lose
            headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
            answer = None if dropped else client.request(self.command, self.path, content=body, headers=headers)
            if answer is None or lost:
                self.close_connection = True
                return
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            """Keep the test output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    with httpx.Client(base_url=target, timeout=60) as client:
        thread.start()
        try:
            line.url = f"http://127.0.0.1:{server.server_port}"
            yield line
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def line(mlflow_server: str) -> Iterator[Line]:
    with line_to(mlflow_server) as line:
        yield line


def save(folder: Path) -> Path:
    ckpt.save({"w": torch.arange(1000.0)}, folder / "checkpoint")
    return folder / "checkpoint"


LOST = {
    "experiment": "POST .*/experiments/create$",
    "model": "POST .*/logged-models$",
    "upload": "PUT .*/manifest.pb$",
    "finalize": "PATCH .*/logged-models/m-",
    "name": "POST .*/registered-models/create$",
    "version": "POST .*/model-versions/create$",
    "alias": "POST .*/registered-models/alias$",
}


@pytest.mark.parametrize("lose", LOST)
def test_a_call_whose_answer_was_lost_is_carried_out_once(lose: str, line: Line, tmp_path: Path) -> None:
    name = f"lost-{lose}"
    server = Server(uri=line.url, home=tmp_path / "home")
    line.lose = LOST[lose]
    folder = save(tmp_path)

    version = registry.publish(folder, name=name, server=server)
    registry.promote(name, version.number, expect=None, reason="first", server=server)

    assert line.lose == ""
    assert [version.number for version in server.versions(name)] == [1]
    assert ckpt.read_manifest(registry.fetch(f"{name}@champion", server=server)).seal == version.seal
    assert server.alias(name, "champion") == 1


def test_a_publication_goes_on_when_the_server_comes_back(
    line: Line, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    patient = Server(uri=line.url, home=tmp_path / "home", patience_s=60)
    line.cut = QUICK_TRIES + 3

    version = registry.publish(save(tmp_path), name="patient", server=patient)

    assert (version.number, line.cut) == (1, 0)
    assert any("Trying again" in record.message for record in caplog.records)
    assert any("answers again" in record.message for record in caplog.records)


def test_who_has_no_patience_is_told_at_once(line: Line, tmp_path: Path) -> None:
    server = Server(uri=line.url, home=tmp_path / "home")
    line.cut = 1

    with pytest.raises(registry.RegistryUnavailableError, match="does not answer"):
        server.versions("nobody")

    assert server.versions("nobody") == []


def test_a_password_in_the_address_is_used_and_not_shown(
    mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.replace("http://", "http://ann:pass%40word@") + "/")

    server = Server.from_environment()

    assert server.uri == mlflow_server
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == "ann"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "pass@word"


def test_patience_ends() -> None:
    tries = Tries(patience_s=10)
    for now_s in (100.0, 100.5, 109.0):
        tries = tries.fail(now_s=now_s)
        assert not tries.is_over(now_s=now_s, is_away=True)
    assert tries.fail(now_s=110.0).is_over(now_s=110.0, is_away=True)
    hasty = Tries(patience_s=0)
    pauses = []
    for _ in range(QUICK_TRIES):
        hasty = hasty.fail(now_s=1.0)
        pauses.append(hasty.pause_s)
        assert not hasty.is_over(now_s=1.0, is_away=False)
        assert hasty.is_over(now_s=1.0, is_away=True)
    assert hasty.fail(now_s=1.0).is_over(now_s=1.0, is_away=False)
    assert pauses == [0.25, 0.5]
