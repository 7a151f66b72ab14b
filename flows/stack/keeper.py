"""The keeper: starts again whatever service of the stack has ended, until ``down`` ends the keeper first.

A killed or crashed server comes back at its address within a second or two, and its clients try again meanwhile; a
killed fleet comes back on the ports of its workers. A service that keeps ending is started less and less often. When
the keeper itself is killed the stack serves on unkept, ``status`` says so, and the next ``up`` starts it again. Servers
that the environment names are nobody's to start: there are no records of them.

It needs no handler for SIGTERM: whoever stops it holds the lock under which it starts things.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from flows.stack import prefect_worker
from flows.stack.environment import Addresses, inherited
from flows.stack.lock import alone
from flows.stack.process import Record, Service, bury, launch, records
from flows.stack.services import again

NAME = "keeper"
LOOK_S = 0.5
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_S = 120.0

Say = Callable[[str], None]


def service(home: Path, addresses: Addresses) -> Service:
    """The keeper's own process; it is ready when it is there."""
    return Service(
        name=NAME,
        command=(sys.executable, "-m", "flows", "keep"),
        url="",
        ready=lambda: True,
        environment=inherited(home, addresses),
    )


@dataclass(frozen=True, slots=True)
class Try:
    """A start by the keeper: when, by the monotonic clock, and how long at least until the next one."""

    at: float
    pause_s: float = FIRST_PAUSE_S

    def allows(self, now: float) -> bool:
        """Whether the pause is over."""
        return now - self.at >= self.pause_s

    def next(self, now: float) -> "Try":
        """The following start: after a steady run as if it were the first, else with twice the pause."""
        steady = now - self.at >= STEADY_S
        return Try(now) if steady else Try(now, min(2 * self.pause_s, LONGEST_PAUSE_S))


def keep(home: Path, addresses: Addresses, *, say: Say) -> NoReturn:
    """Look after the services of a state folder for ever."""
    tries: dict[str, Try] = {}
    while True:
        _reap()
        for record in _ended(home, tries, now=time.monotonic()):
            now, last = time.monotonic(), tries.get(record.name)
            tries[record.name] = last.next(now) if last else Try(now)
            _start_again(record, home, addresses, say=say)
        time.sleep(LOOK_S)


def _ended(home: Path, tries: Mapping[str, Try], *, now: float) -> list[Record]:
    return [
        record
        for record in records(home)
        if record.name != NAME
        and record.process() is None
        and (record.name not in tries or tries[record.name].allows(now))
    ]


def _start_again(record: Record, home: Path, addresses: Addresses, *, say: Say) -> None:
    """Start a service whose process ended, unless someone else stopped or started it just now."""
    with alone(home):
        if record not in records(home):
            return
        if record.name == prefect_worker.NAME and not _settled(home, addresses):
            say(f"{record.name} (pid {record.pid}) ended; not started yet, since Prefect does not answer")
            return
        bury(record.name, home)  # before ports are chosen
        new = launch(again(record, home, addresses), home)
    say(f"{record.name} (pid {record.pid}) ended; started again as pid {new.pid}")


def _settled(home: Path, addresses: Addresses) -> bool:
    """Mark the runs that died with the Prefect worker; by a process of its own, so that none here imports Prefect."""
    code = "from flows import settling; settling.settle(worker_lives=False)"
    return (
        subprocess.run([sys.executable, "-c", code], env=dict(inherited(home, addresses)), check=False).returncode == 0
    )


def _reap() -> None:
    """Take leave of ended children, or they would stay in the process table."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
