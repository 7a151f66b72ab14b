"""The hook in every Python process of the stack: no global is taken from a pickle, no code from a marshal.

Python runs this file at the start of each process that has its folder on ``PYTHONPATH``; ``python -m flows`` calls
:func:`arm` itself. It imports a few standard modules that every such process needs anyway.

Promises: a pickle that names a global is refused before the global is looked up, and so is a marshal that anything but
Python's own import asks for; each refusal is recorded with who asked. Connections and look-ups beyond loopback are
recorded, not refused. A process writes its armed line only after it has tried both and was refused both; where the
hook is not live, the process does not start. Refusing does not hang on the record: a full disk costs the line only.

Leaves to others: reading the records (``flows.stack.guard``), and the reasons (``docs/decisions/0006-the-guard.md``).
"""

import _pickle
import json
import marshal
import os
import sys
import time
import zipimport
from contextlib import suppress
from types import FrameType

HOME_VARIABLE = "TREERING_STACK"
ROLE_VARIABLE = "TREERING_ROLE"
ARMED = "armed"  # a file for each process
FOUND = "found.jsonl"
MAX_FOUND_BYTES = 4 << 20
MAX_LINES = 100  # of one process
MAX_ARMED = 1000  # files; beyond, those of ended processes go
MAX_FRAMES = 30

# What a role may take from pickles. Prefect's server keeps its own queue (docket) as pickles in its own memory; the
# arguments of its background tasks are UUIDs, strings, and lists of them.
ALLOWED = {"prefect": {("uuid", "UUID")}}

_UNMARSHALLERS = (
    vars(sys.modules["_frozen_importlib_external"])["_compile_bytecode"].__code__,
    vars(zipimport)["_unmarshal_code"].__code__,
)
_PROBE = b"cbuiltins\nlen\n."  # a pickle of a harmless global
_INET = (2, 10)  # AF_INET and AF_INET6 of Linux


class RefusedError(RuntimeError):
    """A process of the stack was asked for what none of them does."""


class _Guard:
    """The hook of this process: its role, where it records, and how much it has recorded."""

    def __init__(self, folder: str, role: str) -> None:
        self._folder = folder
        self._role = role
        self._allowed = ALLOWED.get(role, set())
        self._lines = 0
        self._seen: set[tuple[object, ...]] = set()
        self._watched = {
            "pickle.find_class": self._pickle,
            "marshal.loads": self._marshal,
            "marshal.load": self._marshal,
            "socket.connect": self._socket,
            "socket.sendto": self._socket,
            "socket.sendmsg": self._socket,
            "socket.getaddrinfo": self._look_up,
            "socket.gethostbyname": self._look_up,
            "socket.gethostbyaddr": self._look_up,
        }
        self.proving = True

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        act = self._watched.get(event)
        if act is not None:
            act(event, arguments)

    def _pickle(self, event: str, arguments: tuple[object, ...]) -> None:
        if arguments not in self._allowed:
            self._refuse(event, f"the global {'.'.join(map(str, arguments))} from a pickle")

    def _marshal(self, event: str, _: tuple[object, ...]) -> None:
        caller = sys._getframe(2).f_code
        if not any(caller is known for known in _UNMARSHALLERS):
            self._refuse(event, "code or data from a marshal")

    def _socket(self, event: str, arguments: tuple[object, ...]) -> None:
        sock, address = arguments[0], arguments[1]
        if getattr(sock, "family", None) in _INET and isinstance(address, tuple) and not is_loopback(address[0]):
            self._note(event, address[0], address[1])

    def _look_up(self, event: str, arguments: tuple[object, ...]) -> None:
        if not is_loopback(arguments[0]):
            self._note(event, arguments[0], arguments[1] if len(arguments) > 1 else None)

    def _refuse(self, event: str, what: str) -> None:
        if not self.proving:
            self._record(event, what)
        raise RefusedError(
            f"{self._role} (process {os.getpid()}) was asked to take {what}, and no process of the stack does that: "
            "see docs/decisions/0006-the-guard.md. 'python -m flows guard' shows who asked."
        )

    def _note(self, event: str, host: object, port: object) -> None:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
        if (event, name, port) not in self._seen:
            self._seen.add((event, name, port))
            self._record(event, name)

    def _record(self, event: str, what: str) -> None:
        """One line; lost where it cannot be written, since what it tells of is refused all the same."""
        self._lines += 1
        if self._lines <= MAX_LINES:
            asked = {"event": event, "what": what, "stack": _callers()}
            line = {**self._self(), "at": time.time(), "monotonic_s": time.monotonic(), **asked}
            _append(os.path.join(self._folder, FOUND), json.dumps(line) + "\n")

    def _self(self) -> dict[str, object]:
        return {"pid": os.getpid(), "role": self._role, "argv": sys.orig_argv}

    def announce(self) -> None:
        """The armed line of this process, in a file of its own."""
        folder = os.path.join(self._folder, ARMED)
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, f"{os.getpid()}.json"), "w", encoding="utf-8") as file:
                file.write(json.dumps({**self._self(), "tick": start_tick(os.getpid())}))
        except OSError as error:
            sys.stderr.write(f"the guard is live in process {os.getpid()}, but could not say so in {folder}: {error}\n")
        else:
            _sweep(folder)


def arm(home: str, role: str) -> None:
    """Set the hook in this process, prove that it is live, and say so; where it is not, end the process.

    Args:
        home: The state folder, which holds the records.
        role: The service that this process belongs to.
    """
    at_start = HOME_VARIABLE in os.environ and hasattr(sys.modules.get("sitecustomize"), "RefusedError")
    if at_start and __name__ != "sitecustomize":
        return  # armed already
    guard = _Guard(os.path.join(home, "stack", "guard"), role)
    sys.addaudithook(guard.hook)
    for asked, loads, probe in (("a pickle", _pickle.loads, _PROBE), ("a marshal", marshal.loads, b"N")):
        try:
            loads(probe)
        except RefusedError:
            continue
        sys.stderr.write(
            f"{role} (process {os.getpid()}) does not start: its guard took {asked} that it must refuse. Expected an "
            "audit hook that is live; look for what else sets audit hooks in this Python (sys.addaudithook).\n"
        )
        os._exit(70)
    guard.proving = False
    guard.announce()
    os.register_at_fork(after_in_child=guard.announce)


def start_tick(pid: int) -> int:
    """When a process began, in the kernel's ticks since the boot: it tells processes of one number apart (proc(5))."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def is_loopback(host: object) -> bool:
    """Whether a host, as a socket takes it, is this machine: 127.0.0.0/8, ``::1``, ``localhost``, or none at all."""
    if isinstance(host, bytes | bytearray):
        host = host.decode("ascii", "replace")
    if not host or host in ("localhost", "::1", "::", "0.0.0.0"):
        return True
    plain = str(host).removeprefix("::ffff:")
    return plain.startswith("127.") and plain.replace(".", "").isdigit()


def _callers() -> list[str]:
    """Who asked, nearest first, as file:line."""
    frame: FrameType | None = sys._getframe()
    found: list[str] = []
    while frame is not None and len(found) < MAX_FRAMES:
        if frame.f_code.co_filename != __file__:
            found.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return found


def _append(path: str, line: str) -> None:
    with suppress(OSError), open(path, "ab", buffering=0) as file:  # one write: lines of processes do not mix
        if file.tell() < MAX_FOUND_BYTES:
            file.write(line.encode("utf-8"))


def _sweep(folder: str) -> None:
    """Remove the armed files of ended processes, where there are many."""
    names = os.listdir(folder)
    for name in names if len(names) > MAX_ARMED else ():
        if not os.path.exists(f"/proc/{name.partition('.')[0]}"):
            with suppress(FileNotFoundError):  # another process swept it
                os.unlink(os.path.join(folder, name))


if __name__ == "sitecustomize" and HOME_VARIABLE in os.environ:
    arm(os.environ[HOME_VARIABLE], os.environ.get(ROLE_VARIABLE, "unknown"))
