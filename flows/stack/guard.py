"""What the guards of the stack's processes recorded: who is armed, what was refused, what went to other machines.

The hook itself is ``flows/stack/hook/sitecustomize.py``. What it claims and what stands outside:
``docs/decisions/0006-the-guard.md``.
"""

import json
import math
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from flows.errors import GuardError
from flows.stack.environment import Addresses
from flows.stack.hook.sitecustomize import ARMED, FOUND, ROLE_VARIABLE, arm, is_loopback, start_tick
from flows.stack.process import stack_processes

__all__ = ["Finding", "Standing", "account", "arm", "clear", "findings", "standings"]

STARTING_S = 10.0  # until then a process without its armed line may still be reading its own interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the record; ``at`` in seconds since the epoch, ``stack`` as file:line, nearest first."""

    at: float
    monotonic_s: float
    pid: int
    role: str
    argv: list[str]
    event: str
    what: str
    stack: list[str]

    @property
    def is_refusal(self) -> bool:
        """Refused; otherwise a connection or a look-up beyond this machine, which is only recorded."""
        return not self.event.startswith("socket.")

    def __str__(self) -> str:
        verb = "was refused" if self.is_refusal else f"used {self.event} to reach"
        return f"{self.role} (process {self.pid}) {verb} {self.what}, asked by {' < '.join(self.stack[:3])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A living process of the stack; ``armed`` is None where it is no Python process, or one that only just began."""

    pid: int
    role: str
    command: str
    armed: bool | None


def clear(home: Path) -> None:
    """Forget the records of an earlier stack, but for those of living processes."""
    (_folder(home) / FOUND).unlink(missing_ok=True)
    for file in (_folder(home) / ARMED).glob("*.json"):
        if not psutil.pid_exists(int(file.stem)):
            file.unlink()


def findings(home: Path, *, since: float = 0.0) -> list[Finding]:
    """What was recorded, in order; ``since`` by the monotonic clock, which nobody sets."""
    try:
        lines = (_folder(home) / FOUND).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [finding for finding in map(_parsed, lines) if finding.monotonic_s >= since]


def standings(home: Path) -> list[Standing]:
    """Every living process of a state folder's stack, oldest first."""
    found: list[Standing] = []
    for process in stack_processes(home):
        with suppress(psutil.Error, OSError):  # it ended just now
            role, words = process.environ().get(ROLE_VARIABLE, "unknown"), process.cmdline()
            command = " ".join([*(Path(program).name for program in words[:1]), *words[1:7]])
            armed = _is_armed(process, home) if _is_python(process) else None
            found.append(Standing(pid=process.pid, role=role, command=command, armed=armed))
    return found


def account(home: Path, addresses: Addresses, *, since: float) -> str:
    """A sentence on what the guards of a run saw.

    Raises:
        GuardError: something was refused, a process reached for a machine that the caller did not name as a server,
            or a living process is not armed.
    """
    named = _named(addresses)
    met = [finding for finding in findings(home, since=since) if finding.is_refusal or finding.what not in named]
    naked = [standing for standing in standings(home) if standing.armed is False]
    if met or naked:
        raise GuardError([*map(str, met), *(f"{item.role} (process {item.pid}) is not armed" for item in naked)])
    count = len(list((_folder(home) / ARMED).iterdir()))
    beyond = f" but {', '.join(sorted(named))}" if named else ""
    return f"{count} processes guarded: 0 unpickled, 0 connections to other machines{beyond}."


def _parsed(line: str) -> Finding:
    try:
        return Finding(**json.loads(line))
    except json.JSONDecodeError:  # a disk that was full: something was found, nobody knows what
        what = f"a line that was cut off: {line[:60]}"
        return Finding(at=0, monotonic_s=math.inf, pid=0, role="unknown", argv=[], event="unknown", what=what, stack=[])


def _named(addresses: Addresses) -> set[str]:
    """The hosts of servers on other machines that the caller named, by name and by address."""
    urls = (addresses.mlflow, addresses.prefect, addresses.victoria)
    named = {host for url in urls if url and (host := urlsplit(url).hostname) and not is_loopback(host)}
    for host in tuple(named):
        with suppress(socket.gaierror):  # its name alone, then
            named |= {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    return named


def _is_python(process: psutil.Process) -> bool:
    return os.path.realpath(process.exe()) == os.path.realpath(sys.executable)


def _is_armed(process: psutil.Process, home: Path) -> bool | None:
    """Whether its line is there, and is its own: not that of an ended process with the same number."""
    began = start_tick(process.pid)
    with suppress(FileNotFoundError, json.JSONDecodeError):  # none, or not written to its end yet
        if json.loads((_folder(home) / ARMED / f"{process.pid}.json").read_text("utf-8"))["tick"] == began:
            return True
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")
    return False if age_s > STARTING_S else None


def _folder(home: Path) -> Path:
    return home / "stack" / "guard"
