"""Command line: ``python -m compiler explain FOLDER [--json]`` prints the report of a saved program.

Exit code 0 when the program is whole, 1 when it is not (with the fault on standard error).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from command_line import run_command
from compiler.errors import InvalidProgramError
from compiler.explanation import as_text, as_values
from compiler.program import load
from compiler.storage import PROGRAM_FILE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compiler", description="Look into compiled programs.")
    commands = parser.add_subparsers(dest="command", required=True)
    explain = commands.add_parser("explain", help="what was folded, what was refused and why, and how exact it is")
    explain.add_argument("folder", help="a program's folder, or a checkpoint that carries one in its folder 'program'")
    explain.add_argument("--json", action="store_true", help="everything, as one JSON object")
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.folder)
    carried = folder / "program"
    try:
        program = load(
            carried if not (folder / PROGRAM_FILE).exists() and (carried / PROGRAM_FILE).exists() else folder
        )
    except (InvalidProgramError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(as_values(program), indent=2) if chosen.json else as_text(program), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
