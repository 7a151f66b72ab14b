"""Real servers for the tests, started once a session on loopback ports of their own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

# Triton reads it when it is imported, by whatever test comes first: kernels run in NumPy. `make gpu` says 0.
os.environ.setdefault("TRITON_INTERPRET", "1")
# A shell has its background jobs ignore it, and so do their children, among them commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_guard_stays() -> Iterator[None]:
    """A test that arms the guard in this process would have all after it refused, as no audit hook can be removed."""
    yield
    sys.audit("pickle.find_class", "builtins", "len")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path, *, timeout_s: float = 90.0) -> None:
    """Return when ``url`` answers; fail with the process's log when it ends or stays silent."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, timeout=2.0).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    pytest.fail(f"{url} does not answer:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real MLflow server on SQLite, with proxied artifacts."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    log = folder / "server.log"
    environment = os.environ | {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "OMP_NUM_THREADS": "1",
    }
    arguments = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    arguments += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/files"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            arguments, stdout=output, stderr=output, env=environment, cwd=folder, start_new_session=True
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(timeout=30)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with processes of their own first: begun last, one would keep a single core busy at the end."""
    items.sort(key=lambda item: item.get_closest_marker("integration") is None and "tests/serving/" not in item.nodeid)
