"""What a person sees: lines, and on a terminal one moving bar where something takes long, and colour for errors.

Into a file or a pipe go plain lines only: no bar, no colour, no control characters. ``NO_COLOR`` takes the colour away
on a terminal too (no-color.org). Progress reaches this place as text from other processes, ``train full  30 %  loss
0.4``, so that logs and pages read the same words.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_PROGRESS = re.compile(r"(?P<what>.*\S)\s+(?P<percent>\d{1,3}) %(?:\s+(?P<more>.*))?")
_CELLS = 20
_CLEAR = "\r\x1b[K"
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"


class Terminal:
    """Says lines on a stream, with a bar where the stream is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._moves = stream.isatty()
        self._bar = self._broken = False

    def say(self, line: str) -> None:
        """Print a line; one that tells of progress moves the bar instead, where there is one."""
        progress = _PROGRESS.fullmatch(line) if self._moves else None
        if progress and progress["percent"] != "100":
            self._draw(progress["what"], int(progress["percent"]), progress["more"] or "")
            return
        self._write(f"{_CLEAR if self._bar else ''}{line}\n")
        self._bar = False

    def _draw(self, what: str, percent: int, more: str) -> None:
        filled = round(_CELLS * percent / 100)
        text = f"{what} {'█' * filled}{'░' * (_CELLS - filled)} {percent:3} %  {more}"
        self._write(_CLEAR + text[: shutil.get_terminal_size().columns - 1])
        self._bar = True

    def _write(self, text: str) -> None:
        """The first failure is raised, and is the last: what cleans up after it says more, and must come to its end."""
        if self._broken:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._broken = True
            raise


def command() -> str:
    """How to call this command line from here: ``python -m flows``, where that is this Python."""
    found = shutil.which("python")
    if found and os.path.samefile(os.path.dirname(found), os.path.dirname(sys.executable)):
        return "python -m flows"
    return f"{min(sys.executable, os.path.relpath(sys.executable), key=len)} -m flows"


def timed(say: Callable[[str], None]) -> Callable[[str], None]:
    """The same, with the time of day before each line: for the logs of processes that run for days."""
    return lambda line: say(f"{time.strftime('%H:%M:%S')} {line}")


def say_error(text: str) -> None:
    """Print an error on standard error, red on a terminal."""
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print(f"{_RED}{text}{_PLAIN}" if coloured else text, file=sys.stderr)
