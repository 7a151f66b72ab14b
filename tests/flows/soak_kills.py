"""Kill every process of the stack at every moment of the pipeline: ``python -m tests.flows.soak_kills``.

One run of the demo for each pair of moment and victim, all on one stack; after a run that did not survive, one without
blows must. Between runs everything must be back and whole, and after the last ``down`` must leave nothing.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from tests.flows.killing import MOMENTS, VICTIMS, Blow, Stack, last_word


def main() -> int:
    """Run the matrix; print a row for each blow, and write them all as JSON."""
    options = _parser().parse_args()
    blows = [Blow(moment, victim) for victim in options.victims for moment in options.moments]
    stack = Stack(options.home.resolve())
    rows: list[dict[str, object]] = []
    for number, blow in enumerate(blows, 1):
        row = _one(stack, blow)
        rows.append(row)
        print(f"{number:3}/{len(blows)}  {blow.victim:<17} {blow.moment:<15} {row['outcome']}", flush=True)
        options.json.write_text(json.dumps(rows, indent=1))
    stack.check_down()
    return int(any(str(row["outcome"]).startswith("BAD") for row in rows))


def _one(stack: Stack, blow: Blow) -> dict[str, object]:
    began = time.monotonic()
    run = stack.pipeline([blow])
    row: dict[str, object] = {"moment": blow.moment, "victim": blow.victim, "status": run.status}
    try:
        if blow.victim == "keeper":
            stack.flows("up", "--ports", "free")
        stack.check_running()
        if not run.struck:
            outcome = "BAD: the moment did not come"
        elif run.status == 0:
            outcome = "survived"
        else:
            row["word"] = last_word(run.output)
            again = stack.pipeline()
            outcome = f"failed clearly, next run {'works' if again.status == 0 else 'BAD'}: {row['word']}"
            if again.status:
                outcome = f"BAD: {outcome}"
                row["again"] = again.output[-4000:]
    except AssertionError as error:
        outcome = f"BAD: {error}"
    if outcome.startswith("BAD"):
        row["output"] = run.output[-6000:]
    return row | {"outcome": outcome, "seconds": round(time.monotonic() - began)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="a new state folder")
    parser.add_argument("--json", type=Path, default=Path("kills.json"), help="where the rows go")
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=VICTIMS)
    parser.add_argument("--moments", nargs="+", choices=MOMENTS, default=list(MOMENTS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
