"""Kill every process of the stack at every moment of the pipeline: ``python -m tests.flows.soak_kills``.

Runs of the demo on one stack. In each run every process but the engine is killed once, each at another moment; from run
to run the moments move on by one, so that all pairs come up. A run that does not survive is taken apart: one run for
each of its pairs, and after one that fails again, a run without blows, which must work. The engine's death ends a run,
so its pairs have runs of their own. Between runs everything must be back and whole, and after ``down`` nothing be left.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.flows.killing import MOMENTS, VICTIMS, Blow, Run, Stack, last_word

Rows = dict[str, dict[str, str]]  # victim → moment → outcome


def main() -> int:
    """Run the matrix; print a line for each run, and write the matrix as JSON."""
    options = _parser().parse_args()
    stack = Stack(options.home.resolve())
    rows: Rows = {victim: {} for victim in options.victims}
    for blows in _rotations(options.moments, [victim for victim in options.victims if victim != "engine"]):
        _all(stack, blows, rows)
        options.json.write_text(json.dumps(rows, indent=1))
    for moment in options.moments if "engine" in options.victims else ():
        rows["engine"][moment] = _alone(stack, Blow(moment, "engine"))
        options.json.write_text(json.dumps(rows, indent=1))
    stack.check_down()
    outcomes = [outcome for row in rows.values() for outcome in row.values()]
    print(f"{len(outcomes)} pairs, {sum(outcome == 'survived' for outcome in outcomes)} survived")
    return int(any(outcome.startswith("BAD") for outcome in outcomes))


def _rotations(moments: Sequence[str], victims: Sequence[str]) -> Iterator[list[Blow]]:
    """Runs in which no two blows fall in one moment; together all pairs."""
    for shift in range(len(moments)):
        yield [Blow(moments[(place + shift) % len(moments)], victim) for place, victim in enumerate(victims)]


def _all(stack: Stack, blows: Sequence[Blow], rows: Rows) -> None:
    """One run with several blows; when it does not survive, one for each."""
    began = time.monotonic()
    run = stack.pipeline(blows)
    problem = _problem(stack, run)
    for blow in blows:
        rows[blow.victim][blow.moment] = _outcome(blow, run)
    seconds = time.monotonic() - began
    struck = ", ".join(f"{blow.victim} at {blow.moment}" for blow in run.struck)
    print(f"{seconds:4.0f} s  {struck}: {problem or 'survived'}", flush=True)
    if problem is not None:
        for blow in run.struck:
            rows[blow.victim][blow.moment] = _alone(stack, blow)


def _alone(stack: Stack, blow: Blow) -> str:
    """A run with one blow; after one that failed, a run without."""
    run = stack.pipeline([blow])
    problem = _problem(stack, run)
    outcome = _outcome(blow, run)
    if problem is not None:
        again = stack.pipeline()
        works = _problem(stack, again) is None
        outcome = (
            f"{'' if works and run.status == 1 else 'BAD: '}failed, next run {'works' if works else 'fails'}: {problem}"
        )
    print(f"        {blow.victim} at {blow.moment}: {outcome}", flush=True)
    return outcome


def _outcome(blow: Blow, run: Run) -> str:
    if blow in run.struck:
        return "survived"
    return "not alive then" if blow in run.missed else "moment not reached"


def _problem(stack: Stack, run: Run) -> str | None:
    """What a run ended with, or what was not whole after it."""
    try:
        stack.check_running()
    except AssertionError as error:
        return f"BAD: {error}"
    return None if run.status == 0 else last_word(run.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True, help="a new state folder")
    parser.add_argument("--json", type=Path, default=Path("kills.json"), help="where the matrix goes")
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=VICTIMS)
    parser.add_argument("--moments", nargs="+", choices=MOMENTS, default=list(MOMENTS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
