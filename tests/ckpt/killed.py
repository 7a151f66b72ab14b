"""Work that is killed in a child process, and what its second call may look at."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# The beginning of a script: it dies when so many frames (its first argument) are noted as made.
DIES_AFTER_FRAMES = """
import os, signal, sys
import ckpt
from ckpt.deltas.notes import Notes

add, noted = Notes.add, []

def add_then_die(self, frame):
    add(self, frame)
    noted.append(frame)
    if len(noted) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

Notes.add = add_then_die
"""


def kill(script: str, *arguments: object) -> None:
    killed = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], check=False)
    assert killed.returncode == -signal.SIGKILL


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def count(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """Calls of a method from here on."""
    method, calls = getattr(owner, name), list[object]()

    def counted(self: object, *arguments: object) -> object:
        calls.append(arguments)
        return method(self, *arguments)

    monkeypatch.setattr(owner, name, counted)
    return calls


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
