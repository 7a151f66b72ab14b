"""What is started again, what is ended first, and what killed processes leave behind."""

import fcntl
import os
import socket
import sys
import threading
from pathlib import Path

import psutil

from flows.stack.keeper import LONGEST_PAUSE_S, STEADY_S, Try
from flows.stack.leftovers import sweep, temporary
from flows.stack.process import Service, end_strays, find, launch, records, stack_processes, stop
from registry.cache import Cache

LISTEN = """
import os, socket, sys, time
listener = socket.socket()
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
if os.fork():
    os.kill(os.getpid(), 9)  # the service dies, its child goes on holding the port
time.sleep(600)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def service(home: Path, *command: str) -> Service:
    environment = {**os.environ, "TREERING_STACK": str(home)}
    return Service(name="a", command=command, url="", ready=lambda: True, environment=environment)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_service_that_keeps_ending_is_started_less_and_less_often() -> None:
    attempt = Try(100.0)
    assert not attempt.allows(100.5)
    assert attempt.allows(101.0)

    pauses = []
    for _ in range(10):
        attempt = attempt.next(attempt.at + attempt.pause_s)
        pauses.append(attempt.pause_s)

    assert pauses[:4] == [2, 4, 8, 16]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert attempt.next(attempt.at + STEADY_S).pause_s == Try(0).pause_s


def test_what_a_dead_service_left_is_ended_before_it_is_started_again(tmp_path: Path) -> None:
    port = free_port()
    dead = launch(service(tmp_path, sys.executable, "-c", LISTEN, str(port)), tmp_path, port=port)
    _wait_until_dead_and_listening(dead.pid, port)

    again = launch(service(tmp_path, sys.executable, "-c", "import time; time.sleep(600)"), tmp_path, port=port)

    assert not listens(port)
    assert [process.pid for process in stack_processes(tmp_path)] == [again.pid]
    stop(again, tmp_path)


def test_a_forgotten_process_of_this_stack_gives_its_port_up(tmp_path: Path) -> None:
    port = free_port()
    launch(service(tmp_path, sys.executable, "-c", LISTEN, str(port)), tmp_path, port=port)
    _wait_until_dead_and_listening(records(tmp_path)[0].pid, port)
    (tmp_path / "stack" / "a.process.json").unlink()  # as after a kill between the start and its record

    again = launch(service(tmp_path, sys.executable, "-c", "import time; time.sleep(600)"), tmp_path, port=port)

    assert not listens(port)
    assert find(tmp_path, "a") == again
    stop(again, tmp_path)


def _wait_until_dead_and_listening(pid: int, port: int) -> None:
    for _ in range(600):
        if listens(port) and (not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE):
            return
        threading.Event().wait(0.05)
    raise AssertionError("the service did not come up and die")


def test_a_sweep_removes_what_nobody_holds(tmp_path: Path) -> None:
    (temporary(tmp_path) / "pymp-1").mkdir()
    (tmp_path / "cache" / "programs").mkdir(parents=True)
    draft = tmp_path / "cache" / "programs" / ".draft-1"
    draft.touch()
    abandoned = tmp_path / "runs" / "mnist" / ".1.0a0b0c0d.saving"
    abandoned.mkdir(parents=True)
    kept = tmp_path / "runs" / "mnist" / "1"
    kept.mkdir()
    with (
        Cache(tmp_path / "cache").workspace() as held,
        open(tmp_path / "cache" / "programs" / ".draft-2", "w") as other,
    ):
        fcntl.flock(other, fcntl.LOCK_EX)
        left = tmp_path / "cache" / "work" / "left"
        left.mkdir()

        sweep(tmp_path)

        assert held.is_dir()
        assert Path(other.name).exists()
    assert kept.is_dir()
    assert not any(path.exists() for path in (left, draft, abandoned, tmp_path / "tmp"))


def test_a_record_of_another_version_is_left_out_and_its_process_ended(tmp_path: Path) -> None:
    record = launch(service(tmp_path, sys.executable, "-c", "import time; time.sleep(600)"), tmp_path)
    (tmp_path / "stack" / "a.process.json").write_text('{"name": "a", "pid": 1, "since": "yesterday"}')
    (tmp_path / "stack" / "b.process.json").write_text('{"name":')

    assert records(tmp_path) == []
    assert end_strays(tmp_path) == 1

    assert record.process() is None
    assert not list(tmp_path.glob("stack/*.process.json"))
