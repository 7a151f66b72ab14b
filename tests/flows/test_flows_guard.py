"""The guard in a process: what it refuses, what it records, and that nothing starts without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.errors import GuardError
from flows.stack import Addresses, guard
from flows.stack.environment import HOOK
from flows.stack.hook.sitecustomize import MAX_ARMED, MAX_FOUND_BYTES, MAX_LINES, is_loopback

UNPICKLE = "import pickle; pickle.loads(pickle.dumps(len))"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def run(code: str, home: Path, role: str = "a-test", **more: str) -> "subprocess.CompletedProcess[str]":
    """A Python process as the stack starts one."""
    own = {"TREERING_STACK": str(home), "TREERING_ROLE": role, "PYTHONPATH": str(HOOK)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **own, **more}, capture_output=True, text=True, check=False)


def armed(home: Path) -> list[Path]:
    return sorted((home / "stack" / "guard" / "armed").iterdir())


REFUSED = {
    "the C unpickler": (UNPICKLE, "pickle.find_class", "the global builtins.len"),
    "the Python unpickler": (
        "import pickle; pickle._loads(pickle.dumps(print))",
        "pickle.find_class",
        "the global builtins.print",
    ),
    "a class of the program's own": (
        "import pickle\nclass C: pass\npickle.loads(pickle.dumps(C()))",
        "pickle.find_class",
        "the global __main__.C",
    ),
    "an extension code": (
        "import copyreg, pickle; copyreg.add_extension('os', 'system', 9); pickle.loads(b'\\x80\\x02\\x82\\x09.')",
        "pickle.find_class",
        "the global os.system",
    ),
    "marshal": ("import marshal; marshal.loads(marshal.dumps(3))", "marshal.loads", "code or data"),
    "marshal from a file": (
        "import io, marshal; marshal.load(io.BytesIO(marshal.dumps(3)))",
        "marshal.load",
        "code or data",
    ),
    "a function named like the import's": (
        "import marshal\ndef _compile_bytecode(data): return marshal.loads(data)\n_compile_bytecode(marshal.dumps(3))",
        "marshal.loads",
        "code or data",
    ),
}


@pytest.mark.parametrize("way", REFUSED)
def test_what_a_process_of_the_stack_refuses_and_records(way: str, home: Path) -> None:
    code, event, words = REFUSED[way]

    done = run(f"{code}; print('went on')" if "\n" not in code else f"{code}\nprint('went on')", home)

    (found,) = guard.findings(home)
    assert done.returncode == 1
    assert "RefusedError: a-test (process" in done.stderr
    assert "went on" not in done.stdout
    assert (found.event, found.role, found.is_refusal) == (event, "a-test", True)
    assert words in found.what
    assert any("<string>" in line for line in found.stack)
    assert str(found.pid) == armed(home)[0].stem


def test_what_needs_no_global_is_let_through(home: Path) -> None:
    code = "import json.tool, pickle, zipfile; print(pickle.loads(pickle.dumps({'a': [1, 2.5, None]})))"

    done = run(code, home)

    assert (done.returncode, done.stdout) == (0, "{'a': [1, 2.5, None]}\n"), done.stderr
    assert guard.findings(home) == []
    assert len(armed(home)) == 1


def test_an_imported_module_may_come_from_bytecode_and_from_a_zip(home: Path, tmp_path: Path) -> None:
    code = f"""
import compileall, pathlib, sys, zipfile
folder = pathlib.Path({str(tmp_path)!r})
(folder / "cached.py").write_text("word = 'cached'")
(folder / "zipped.py").write_text("word = 'zipped'")
compileall.compile_file(folder / "cached.py", quiet=1)
compileall.compile_file(folder / "zipped.py", quiet=1, legacy=True)
with zipfile.ZipFile(folder / "a.zip", "w") as archive:
    archive.write(folder / "zipped.pyc", "zipped.pyc")
(folder / "zipped.py").unlink(), (folder / "zipped.pyc").unlink()
sys.path[:0] = [str(folder), str(folder / "a.zip")]
import cached, zipped
print(cached.word, zipped.word, zipped.__file__)
"""

    done = run(code, home)

    assert done.stdout.split() == ["cached", "zipped", str(tmp_path / "a.zip" / "zipped.pyc")], done.stderr


def test_prefects_server_may_take_a_uuid_and_nothing_else(home: Path) -> None:
    code = "import pickle, uuid; print(pickle.loads(pickle.dumps([uuid.UUID(int=7)]))[0].int)"

    others = run(code, home)
    server = run(code, home, role="prefect")
    more = run(UNPICKLE, home, role="prefect")

    assert "the global uuid.UUID" in others.stderr
    assert (server.returncode, server.stdout) == (0, "7\n")
    assert "the global builtins.len" in more.stderr


VETO = """
import sys
def veto(event, arguments):
    if event == "sys.addaudithook":
        raise RuntimeError  # Python then forgets the new hook without a word
sys.addaudithook(veto)
from flows.stack.hook.sitecustomize import arm
arm(sys.argv[1], "a-test")
print("started")
"""


def test_a_process_whose_hook_is_not_live_does_not_start(home: Path) -> None:
    command = [sys.executable, "-c", VETO, str(home)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (70, "")
    assert "does not start: its guard took a pickle that it must refuse" in done.stderr
    assert not (home / "stack" / "guard").exists()


def test_a_forked_process_says_for_itself_that_it_is_armed(home: Path) -> None:
    code = (
        "import os; print(os.getpid(), flush=True); child = os.fork(); child and (os.waitpid(child, 0), print(child))"
    )

    done = run(code, home)

    assert {path.stem for path in armed(home)} == set(done.stdout.split())


def test_a_record_that_cannot_be_written_changes_nothing_about_the_refusal(home: Path) -> None:
    home.mkdir()
    (home / "stack").write_text("a file where a folder should be")

    done = run(UNPICKLE, home)

    assert "the guard is live in process" in done.stderr
    assert "but could not say so in" in done.stderr
    assert "RefusedError" in done.stderr


def test_connections_beyond_this_machine_are_recorded_and_left_alone(home: Path) -> None:
    code = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname())
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))
for _ in range(3):
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"", ("::1", 9))
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.2", 9))
        socket.getaddrinfo("nobody.invalid", 80)
    except OSError:
        pass
"""

    done = run(code, home)

    assert done.returncode in (0, 1), done.stderr  # without a route the first connect is an OSError of its own
    found = guard.findings(home)
    assert ("socket.connect", "192.0.2.1") in [(item.event, item.what) for item in found]
    assert {item.what for item in found} <= {"192.0.2.1", "192.0.2.2", "nobody.invalid"}
    assert len(found) == len({(item.event, item.what) for item in found})
    assert not any(item.is_refusal for item in found)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "::ffff:127.0.0.1", b"127.0.0.1", "", None]
)
def test_this_machine(host: str | bytes | None) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["127.evil.example", "10.0.0.1", "localhost.example", "fe80::1", "::ffff:10.0.0.1", b"1.1.1.1"]
)
def test_another_machine(host: str | bytes) -> None:
    assert not is_loopback(host)


def test_records_do_not_grow_without_bound(home: Path) -> None:
    folder = home / "stack" / "guard" / "armed"
    folder.mkdir(parents=True)
    for number in range(MAX_ARMED + 1):
        (folder / f"{2**22 + 1 + number}.json").write_text("{}")  # beyond any process number
    (folder.parent / "found.jsonl").write_bytes(bytes(MAX_FOUND_BYTES - 10))
    many = "import pickle\nfor _ in range(300):\n  try: pickle.loads(b'cos\\nsystem\\n.')\n  except RuntimeError: pass"

    run(many, home)

    assert len(armed(home)) == 1
    assert (folder.parent / "found.jsonl").read_bytes().count(b"pickle.find_class") == 1
    (folder.parent / "found.jsonl").unlink()
    run(many, home)
    assert len(guard.findings(home)) == MAX_LINES


LOCAL = Addresses(mlflow="http://127.0.0.1:1", prefect="http://127.0.0.1:2/api", victoria=None)
KNOCK = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', ('192.0.2.7', 9))"


def test_a_run_is_accounted_for(home: Path) -> None:
    run("pass", home)
    run(UNPICKLE, home)
    before = guard.findings(home)[0].monotonic_s
    run(KNOCK, home)
    named = Addresses(mlflow="http://192.0.2.7:5000", prefect="http://127.0.0.1:2/api", victoria=None)

    assert guard.account(home, named, since=before + 1e-3) == (
        "3 processes guarded: 0 unpickled, 0 connections to other machines but 192.0.2.7."
    )
    with pytest.raises(GuardError, match=r"found 1, expected nothing: a-test \(process \d+\) .* 192\.0\.2\.7"):
        guard.account(home, LOCAL, since=before + 1e-3)
    with pytest.raises(GuardError, match=r"found 1, .* was refused the global builtins\.len from a pickle, asked by"):
        guard.account(home, named, since=before)


def test_a_living_process_without_a_guard_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STARTING_S", 0.0)
    code = "print(flush=True); input()"
    environment = {**os.environ, "TREERING_STACK": str(home), "TREERING_ROLE": "naked"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        (standing,) = guard.standings(home)
        with pytest.raises(GuardError, match=rf"naked \(process {process.pid}\) is not armed"):
            guard.account(home, LOCAL, since=0)
        process.kill()

    assert (standing.role, standing.armed) == ("naked", False)


def test_a_line_that_was_cut_off_counts_as_a_finding(home: Path) -> None:
    run(UNPICKLE, home)
    file = home / "stack" / "guard" / "found.jsonl"
    file.write_bytes(file.read_bytes()[:-20])

    with pytest.raises(GuardError, match="a line that was cut off"):
        guard.account(home, LOCAL, since=0)


def test_a_new_stack_begins_with_empty_records(home: Path) -> None:
    run(UNPICKLE, home)

    guard.clear(home)

    assert guard.findings(home) == []
    assert armed(home) == []
