"""What every command line here does alike, whatever becomes of its call and of its answer.

A call that makes no sense ends with 2, an interrupted command with 130 and one line. An answer that a full disk does
not take is told in one line and ends with 1; of a reader that has gone, as with ``| head``, nothing is said.
"""

import argparse
import errno
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

_UNWRITTEN = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class Parser(argparse.ArgumentParser):
    """Takes no option by the beginning of its name: a new option would change what an old script says."""

    def __init__(self, **more: object) -> None:
        super().__init__(allow_abbrev=False, **more)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Raises _UsageError, for :func:`parsed` to tell."""
        raise _UsageError(self, message)


class _UsageError(Exception):
    """A call that a parser does not take."""


def parsed(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a call; ends the program with 2 when it makes no sense, in JSON where that was asked for."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        return parser.parse_args(given)
    except _UsageError as error:
        refusing, message = error.args
        if "--json" not in given:
            argparse.ArgumentParser.error(refusing, message)
        print(json.dumps({"ok": False, "error": "UsageError", "message": message}))
        raise SystemExit(2) from None


def run_command(run: Callable[[], int]) -> int:
    """Run a command that prints; return its exit code, see the module's head."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names may hold what the terminal's encoding does not
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("KeyboardInterrupt: stopped before its end", file=sys.stderr)
        return 130
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITTEN:
            raise
        if error.errno != errno.EPIPE:
            print(f"{type(error).__name__}: {error}: the answer was not written", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return 1
