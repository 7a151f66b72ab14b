"""``python -m benchmarks AREA --json FILE``: measure an area, print its table, write its figures.

Exit code 0 when everything was measured or left out with a reason, 1 when a side failed (the figures of the others are
written, and how it failed) and on an error.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.areas import AREAS, find_area
from benchmarks.document import document
from benchmarks.errors import BenchmarkError, UnknownStageError
from benchmarks.machine import load_average, machine_facts
from benchmarks.plan import Stage
from benchmarks.running import ENVIRONMENT, run_stages
from benchmarks.table import table
from command_line import run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one area."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        failed = _measure(options, command=shlex.join(["python", "-m", "benchmarks", *(arguments or sys.argv[1:])]))
    except BenchmarkError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 1 if failed else 0


def _measure(options: argparse.Namespace, *, command: str) -> list[str]:
    """Measure, print and write; the names of sides that failed."""
    stages = _chosen(find_area(options.area)(options.quick), options.stage)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    date, started_s, load_before = datetime.now(UTC), time.monotonic(), load_average()

    def say(line: str) -> None:
        print(f"  {time.monotonic() - started_s:5.0f} s  {line}", file=sys.stderr, flush=True)

    outcomes = []
    for outcome in run_stages(stages, repeats=options.repeats, together=options.quick or options.together, say=say):
        outcomes.append(outcome)
        print(table([outcome]), flush=True)
    facts = {
        "area": options.area,
        "command": command,
        "date": date.isoformat(timespec="seconds"),
        "is_quick": options.quick,
        "repeats": options.repeats,
        "duration_s": round(time.monotonic() - started_s, 1),
        "load_average": {"before": load_before, "after": load_average()},
        "environment": dict(ENVIRONMENT),
        "machine": machine_facts(),
    }
    text = json.dumps(document(outcomes, facts=facts), indent=1, ensure_ascii=False)
    options.json.write_text(f"{text}\n", "utf-8")
    failed = [side.side.name for outcome in outcomes for side in outcome.sides if side.failed is not None]
    say(f"written to {options.json}" + (f", without what failed: {', '.join(failed)}" if failed else ""))
    return failed


def _chosen(stages: Sequence[Stage], name: str | None) -> Sequence[Stage]:
    chosen = [stage for stage in stages if name in (None, stage.name)]
    if not chosen:
        raise UnknownStageError(str(name), known=[stage.name for stage in stages])
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed and memory beside peers.")
    parser.add_argument("area", help=f"one of: {', '.join(AREAS)}")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the figures go")
    parser.add_argument("--repeats", type=_count, default=3, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument("--stage", metavar="NAME", help="this one alone (default: all of the area)")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, shared processes: shows that it works, not how fast"
    )
    parser.add_argument(
        "--together", action="store_true", help="one process for a stage: where a GPU's seconds are all that is asked"
    )
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} rounds; expected at least 1")
    return count


if __name__ == "__main__":
    sys.exit(main())
