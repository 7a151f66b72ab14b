"""Real servers for the monitor's tests, on loopback: VictoriaMetrics, and workers that count synthetic traffic."""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.web import web_server

VICTORIA = shutil.which("victoria-metrics")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def victoria_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A VictoriaMetrics server with default settings, but for a retention that keeps these tests' fixed dates."""
    if VICTORIA is None:
        pytest.skip("victoria-metrics is not installed")
    port = free_port()
    folder: Path = tmp_path_factory.mktemp("victoria")
    url = f"http://127.0.0.1:{port}"
    command = [VICTORIA, f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={folder}", "-retentionPeriod=100y"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([*command, "-memory.allowedBytes=200MB"], stderr=log) as server,
    ):
        try:
            wait_until_healthy(url)
            yield url
        finally:
            server.terminate()


@pytest.fixture
def serve_text() -> Iterator[Callable[[Callable[[], str]], str]]:
    """Serves whatever a function returns, at every path; gives the address."""
    with ExitStack() as servers:
        yield lambda text: "http://" + servers.enter_context(web_server(lambda path, headers: (200, text())))


def wait_until_healthy(url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return
        except httpx.TransportError:
            continue
    raise AssertionError(f"victoria-metrics is not up at {url} after 30 s")
