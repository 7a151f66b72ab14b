"""Servers as other people run them, for tests: Postgres, MLflow with basic auth on it, Prefect and VictoriaMetrics.

Each wants a password, listens on loopback on a port that it keeps, and can be stopped and started again.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

USER, PASSWORD = "ann", "pass-word/of@ann"
POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
VICTORIA = shutil.which("victoria-metrics")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


@dataclass
class Program:
    """One server: how it is started, and whether it lives."""

    command: Sequence[str]
    ready: Callable[[], bool]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        self.launch()
        self.wait()

    def launch(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                env=_clean() | dict(self.environment),
                cwd=self.log.parent,
                user=self.user,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.ready():
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def stop(self) -> None:
        """End it and all that it started."""
        assert self.process is not None
        for number in (signal.SIGINT, signal.SIGKILL):
            if self.is_alive():
                os.killpg(self.process.pid, number)
                try:
                    self.process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    continue
        self.process.wait()

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


def _clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_", "TREERING_"))}


@dataclass
class Foreign:
    """All of them, and the variables by which a user names them."""

    mlflow: Program
    prefect: Program
    victoria: Program
    variables: dict[str, str]


@contextmanager
def foreign_servers() -> Iterator[Foreign]:
    """Start everything; stop it at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foreign-")))
        folder.chmod(0o755)
        database = _postgres(folder / "postgres")
        stack.callback(database.stop)
        database.start()
        uri = f"postgresql+psycopg2://ann@127.0.0.1:{database.environment['PGPORT']}/postgres"
        servers = [_mlflow(folder, uri), _prefect(folder), _victoria(folder)]
        for server, _ in servers:
            stack.callback(server.stop)
            server.launch()
        for server, _ in servers:
            server.wait()
        (mlflow, prefect, victoria), variables = zip(*servers, strict=True)
        yield Foreign(mlflow, prefect, victoria, {key: value for each in variables for key, value in each.items()})


def _postgres(folder: Path) -> Program:
    """Postgres refuses to run as root: then as the user that its package made."""
    assert POSTGRES is not None
    user = "postgres" if os.geteuid() == 0 else None
    folder.mkdir()
    if user is not None:
        shutil.chown(folder, user)
    data, port = folder / "data", free_port()
    subprocess.run(
        [POSTGRES / "initdb", "--auth=trust", f"--username={USER}", "--no-sync", data],
        check=True,
        capture_output=True,
        user=user,
        cwd=folder,
    )
    return Program(
        command=[f"{POSTGRES}/postgres", "-D", str(data), "-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-F"],
        ready=lambda: (
            subprocess.run([POSTGRES / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]).returncode == 0
        ),
        log=folder.parent / "postgres.log",
        environment={"PGPORT": str(port)},
        user=user,
    )


def _mlflow(folder: Path, database: str) -> tuple[Program, dict[str, str]]:
    """MLflow with ``--app-name basic-auth``, under a path prefix; the tests' user is its admin."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (folder / "auth.ini").write_text(
        "[mlflow]\ndefault_permission = READ\nauthorization_function = "
        "mlflow.server.auth:authenticate_request_basic_auth\n"
        f"database_uri = {database}\nadmin_username = {USER}\nauth_cache_ttl_seconds = 60\n"
    )
    program = Program(
        command=[
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            *("--app-name", "basic-auth", "--static-prefix", "/ml", "--backend-store-uri", database),
            *("--artifacts-destination", f"{folder}/artifacts"),
        ],
        ready=lambda: answers(f"{url}/ml/health"),
        log=folder / "mlflow.log",
        environment={
            "MLFLOW_AUTH_CONFIG_PATH": f"{folder}/auth.ini",
            "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "a-secret-of-the-tests",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
    )
    return program, {
        "MLFLOW_TRACKING_URI": f"{url}/ml",
        "MLFLOW_TRACKING_USERNAME": USER,
        "MLFLOW_TRACKING_PASSWORD": PASSWORD,
    }


def _prefect(folder: Path) -> tuple[Program, dict[str, str]]:
    port = free_port()
    program = Program(
        command=[sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        ready=lambda: answers(f"http://127.0.0.1:{port}/api/health"),
        log=folder / "prefect.log",
        environment={
            "PREFECT_HOME": f"{folder}/prefect",
            "PREFECT_SERVER_API_AUTH_STRING": f"{USER}:{PASSWORD}",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "true",
        },
    )
    return program, {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_AUTH_STRING": f"{USER}:{PASSWORD}",
    }


def _victoria(folder: Path) -> tuple[Program, dict[str, str]]:
    """The password stands in the address, as people write it."""
    assert VICTORIA is not None
    port = free_port()
    program = Program(
        command=[
            *(VICTORIA, f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={folder}/victoria"),
            *("-memory.allowedBytes=200MB", "-envflag.enable"),
        ],
        ready=lambda: answers(f"http://127.0.0.1:{port}/health"),
        log=folder / "victoria.log",
        environment={"httpAuth_username": USER, "httpAuth_password": PASSWORD},
    )
    return program, {"TREERING_VICTORIAMETRICS_URL": f"http://ann:pass-word%2Fof%40ann@127.0.0.1:{port}"}


def may_run() -> str | None:
    """Why these servers cannot be started here, or None."""
    if POSTGRES is None or VICTORIA is None:
        return "postgresql or victoria-metrics is not installed; SYSTEM_DEPS=1 make system-deps"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "Postgres refuses to run as root, and there is no user 'postgres'"
    return None
