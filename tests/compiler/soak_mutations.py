"""Mutate programs as often as you like; not collected by pytest.

    python -m tests.compiler.soak_mutations --mutants 100000

Each batch of seeds runs in a process of its own, so that a mutant that ends the process is told by its seed. One that
breaks its word is told by its seed, too, and the next is tried. Ends with a table of what was refused where.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import torch

from tests.compiler.mutations import judge, mutate, victims

BATCH = 2500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--batch", type=Path, help="a batch's file for its answer (what each process is given)")
    options = parser.parse_args()
    if options.batch is not None:
        _batch(options.batch, first=options.first, count=options.mutants)
        return 0
    refused: Counter[str] = Counter()
    for first in range(options.first, options.first + options.mutants, BATCH):
        count = min(BATCH, options.first + options.mutants - first)
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            answer = Path(folder) / "answer"
            command = [sys.executable, "-X", "faulthandler", "-m", "tests.compiler.soak_mutations"]
            command += ["--batch", str(answer), "--first", str(first), "--mutants", str(count)]
            code = subprocess.run(command, check=False).returncode
            if code != 0:
                print(f"seed {answer.read_text()} ended its process: exit code {code}")
                return 1
            refused.update(json.loads(answer.read_text()))
        print(f"{refused.total()} mutants, {refused['accepted']} accepted", flush=True)
    for part, number in refused.most_common():
        print(f"{number:8} {part}")
    return 1 if refused["broken"] else 0


def _batch(answer: Path, *, first: int, count: int) -> None:
    torch.set_num_threads(1)
    refused: Counter[str] = Counter()
    bodies = victims()
    with answer.open("w") as file:
        for seed in range(first, first + count):
            file.seek(0)
            file.write(f"{seed:<12}")
            file.flush()
            try:
                path = judge(mutate(bodies[seed % len(bodies)], Random(seed)))
            except Exception as error:  # noqa: BLE001 (whatever it is: told, and the soak fails at its end)
                print(f"seed {seed} broke its word: {type(error).__name__}: {error}", flush=True)
                path = "broken"
            refused["accepted" if path is None else re.sub(r"\[\d+\]", "[]", path)] += 1
    answer.write_text(json.dumps(refused))


if __name__ == "__main__":
    sys.exit(main())
