"""One background process of the stack: started detached, remembered by pid and start time, stopped for sure.

A record under ``stack/`` in the state folder says what was started; a process counts as ours only while a process
with that pid *and* that start lives, so that a reused pid is never signalled. The start is counted in the kernel's
ticks since the boot, not in time of day: a clock that is set makes no process look like another.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil

from flows.errors import PortInUseError, StackError
from flows.stack.hook.sitecustomize import ROLE_VARIABLE, start_tick

STACK_VARIABLE = "TREERING_STACK"
START_S = 300.0  # enough where there is ten times the work that there are processors for
STOP_S = 20.0
_RECORD = ".process.json"
LONGEST_LOG_BYTES = 16 << 20  # a longer one is put aside when its service starts again


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What to start: a command, its environment, and how one sees that it is ready."""

    name: str
    command: tuple[str, ...]
    url: str
    ready: Callable[[], bool]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was started."""

    name: str
    pid: int
    started: str
    url: str
    log: str

    def process(self) -> psutil.Process | None:
        """The living process, or None."""
        try:
            process = psutil.Process(self.pid)
            is_it = _start_of(self.pid) == self.started and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return None
        return process if is_it else None


def _start_of(pid: int) -> str:
    """The boot and the tick at which a process started."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {start_tick(pid)}"


def answers(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def records(home: Path) -> list[Record]:
    """Everything that was started from this state folder and not stopped, in order of starting.

    A file that is no record of this version is left out: ``down`` finds its process all the same, by its environment.
    """
    found = []
    for file in (home / "stack").glob(f"*{_RECORD}"):
        with suppress(TypeError, ValueError, FileNotFoundError):
            found.append(Record(**json.loads(file.read_text())))
    return sorted(found, key=lambda record: int(record.started.split()[1]))


def find(home: Path, name: str) -> Record | None:
    """The record of a living process of that name."""
    record = next((record for record in records(home) if record.name == name), None)
    return record if record is not None and record.process() is not None else None


def launch(service: Service, home: Path, *, port: int | None = None) -> Record:
    """Start a service that is not running yet; it is not ready when this returns.

    Args:
        service: What to start.
        home: The state folder.
        port: Where it will listen; checked to be free first.

    Raises:
        PortInUseError: another program listens there.
    """
    running = find(home, service.name)
    if running is not None:
        return running
    bury(service.name, home)
    if port is not None:
        _take(service.name, port, home)
    folder = home / "stack"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{service.name}.log"
    put_aside_if_long(log)
    with open(log, "ab") as output:
        process = subprocess.Popen(
            service.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**service.environment, ROLE_VARIABLE: service.name},
            start_new_session=True,
        )
    process.returncode = 0  # it outlives this program on purpose: nobody is to wait for it, or to complain
    record = Record(
        name=service.name,
        pid=process.pid,
        started=_start_of(process.pid),
        url=service.url,
        log=str(log),
    )
    write_whole(folder / f"{service.name}{_RECORD}", json.dumps(asdict(record)))
    return record


def put_aside_if_long(log: Path) -> None:
    """Begin a log anew when it is longer than ``LONGEST_LOG_BYTES``; the one before is kept."""
    if log.exists() and log.stat().st_size > LONGEST_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))


def write_whole(file: Path, text: str) -> None:
    """Write a small file so that readers see the old text or the new one."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(file)


def _take(name: str, port: int, home: Path) -> None:
    """Make sure that a port is free; what an unrecorded process of this stack holds is freed by ending that process."""
    if is_free(port):
        return
    pids = _listening(port)
    ours = [process for process in stack_processes(home) if process.pid in pids]
    _end(ours)
    if not ours or not is_free(port):
        raise PortInUseError(name, port, f"process {pids[0]}" if pids else "another user's program")


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _listening(port: int) -> list[int]:
    """Who listens on a port, as far as this user may see."""
    return [
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.laddr
        and connection.laddr.port == port
        and connection.status == psutil.CONN_LISTEN
        and connection.pid
    ]


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(service: Service, record: Record, *, timeout_s: float = START_S) -> None:
    """Return when a service is ready.

    Raises:
        StackError: it ended, or was not ready in time; the end of its log is shown.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if service.ready():
            return
        if record.process() is None:
            raise StackError(f"{service.name} ended while starting. The end of {record.log}:\n{tail(record)}")
        time.sleep(0.1)
    raise StackError(f"{service.name} is not ready after {timeout_s:.0f} s. The end of {record.log}:\n{tail(record)}")


def tail(record: Record, lines: int = 15) -> str:
    """The end of a process's log."""
    try:
        return "\n".join(Path(record.log).read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


def stop(record: Record, home: Path) -> None:
    """End a process and its group: SIGTERM, then SIGKILL; forget its record."""
    process = record.process()
    if process is not None:
        _signal_group(record.pid, signal.SIGTERM)
        psutil.wait_procs([process], timeout=STOP_S)
        _signal_group(record.pid, signal.SIGKILL)
        psutil.wait_procs([process], timeout=STOP_S)
    (home / "stack" / f"{record.name}{_RECORD}").unlink(missing_ok=True)


def end_strays(home: Path) -> int:
    """End whatever processes of this stack still live, such as flow runs whose worker was killed; return how many."""
    strays = stack_processes(home)
    _end(strays)
    for file in (home / "stack").glob(f"*{_RECORD}"):
        file.unlink()
    return len(strays)


def bury(name: str, home: Path) -> None:
    """End what a dead service left of its process group: a server's children, or a fleet's workers, that hold ports."""
    groups = [record.pid for record in records(home) if record.name == name and record.process() is None]
    if groups:
        _end([process for process in stack_processes(home) if _group(process) in groups])


def _group(process: psutil.Process) -> int | None:
    with suppress(ProcessLookupError, PermissionError):
        return os.getpgid(process.pid)
    return None


def _end(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=STOP_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=STOP_S)


def stack_processes(home: Path) -> list[psutil.Process]:
    """Every living process of this stack, recorded or not, but for this one: they inherit ``TREERING_STACK``."""
    return [process for process in psutil.process_iter() if _belongs(process, home)]


def _belongs(process: psutil.Process, home: Path) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(STACK_VARIABLE) == str(home)
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return False


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it ended meanwhile
        os.killpg(pid, number)


def start_all(services: Sequence[tuple[Service, int | None]], home: Path, *, say: Callable[[str], None]) -> None:
    """Start several services at once and wait for each; what runs already is left as it is.

    Raises:
        PortInUseError: another program listens on one of the ports; nothing was started.
        StackError: one did not start.
    """
    for service, port in services:
        if port is not None and find(home, service.name) is None:
            _take(service.name, port, home)
    started = [(service, launch(service, home, port=port)) for service, port in services]
    for service, record in started:
        wait_ready(service, record)
        say(f"  {service.name:<18} {service.url}".rstrip())
