"""Run an area: one process for each measurement, sides in turn.

A stage gets a folder that its ``prepare`` fills; every measurement gets an empty one that is removed after it. With
``together`` the cases of a stage share one process: fast, and good for nothing but seeing that they work.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.errors import CaseFailedError
from benchmarks.machine import REPOSITORY
from benchmarks.outcome import Outcome, Sample, SideOutcome
from benchmarks.plan import Comparison, Side, Stage, Value

PEERS = Path(__file__).parent / "peers"
TIMEOUT_S = 600.0
# One thread on every side, as in a worker: ratios then do not depend on the number of cores.
ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}

Say = Callable[[str], None]


def run_stages(stages: Iterable[Stage], *, repeats: int, together: bool, say: Say) -> Iterator[Outcome]:
    """Measure stage after stage.

    Args:
        stages: What to measure.
        repeats: Rounds, >= 1; a comparison may ask for fewer.
        together: One process for all cases of a stage, one after the other.
        say: Hears a line before each process.

    Yields:
        The comparisons of each stage once it is done. A side of which a measurement did not come back is measured no
        further and says why, as do all sides of a stage that could not be prepared.
    """
    for stage in stages:
        with TemporaryDirectory(prefix="treering-benchmark-") as folder, _server(stage, Path(folder)) as more:
            bench = _Bench(folder=Path(folder), parameters=more, say=say)
            yield from _run_stage(stage, bench, repeats=repeats, together=together)


def missing(side: Side) -> str | None:
    """Why a side cannot be measured here; None when it can."""
    absent = [need for need in side.needs if not _is_installed(need)]
    return f"{', '.join(absent)} is not installed" if absent else None


def _is_installed(need: str) -> bool:
    kind, _, program = need.partition(":")
    return shutil.which(program) is not None if kind == "program" else find_spec(need) is not None


def _server(stage: Stage, folder: Path) -> AbstractContextManager[Mapping[str, Value]]:
    return stage.server(folder / "server") if stage.server is not None else nullcontext({})


def _run_stage(stage: Stage, bench: "_Bench", *, repeats: int, together: bool) -> list[Outcome]:
    prepare = Side(name="prepare", case=stage.prepare, parameters=stage.parameters)
    turns = [prepare, *_turns(stage.comparisons, repeats=repeats)]
    samples: dict[int, list[Sample]] = {id(side): [] for side in turns}
    failed: dict[int, str] = {}
    for group in _by_program(turns) if together else [[side] for side in turns]:
        if failed.keys() & {id(prepare), *map(id, group)}:
            continue
        try:
            measured = bench.measure(group, label=stage.name)
        except CaseFailedError as error:
            bench.say(str(error))
            failed |= {id(side): str(error) for side in group}
            continue
        for side, sample in zip(group, measured, strict=True):
            samples[id(side)].append(sample)
    failed |= dict.fromkeys(samples, failed[id(prepare)]) if id(prepare) in failed else {}
    return [_outcome(stage, comparison, samples, failed) for comparison in stage.comparisons]


def _turns(comparisons: Sequence[Comparison], *, repeats: int) -> list[Side]:
    """Every side that can be measured here, once in each round of its comparison."""
    return [
        side
        for number in range(repeats)
        for comparison in comparisons
        if number < (comparison.most_repeats or repeats)
        for side in comparison.sides
        if missing(side) is None
    ]


def _outcome(
    stage: Stage, comparison: Comparison, samples: Mapping[int, Sequence[Sample]], failed: Mapping[int, str]
) -> Outcome:
    sides = tuple(
        SideOutcome(
            side=side, samples=tuple(samples.get(id(side), ())), skipped=missing(side), failed=failed.get(id(side))
        )
        for side in comparison.sides
    )
    return Outcome(stage=stage.name, comparison=comparison, sides=sides)


def _by_program(sides: Sequence[Side]) -> list[list[Side]]:
    """Turns that one process can take: those in modules, and those of each script."""
    groups: dict[str, list[Side]] = {}
    for side in sides:
        groups.setdefault(_script(side) or "", []).append(side)
    return list(groups.values())


def _script(side: Side) -> str | None:
    place = side.case.partition(":")[0]
    return place if place.endswith(".py") else None


class _Bench:
    """A stage's folder and what every case of it is given."""

    def __init__(self, *, folder: Path, parameters: Mapping[str, Value], say: Say) -> None:
        self._folder, self._parameters, self.say = folder, parameters, say
        self._shared = folder / "shared"
        self._shared.mkdir()

    def measure(self, sides: Sequence[Side], *, label: str) -> list[Sample]:
        """Measure some sides in one new process.

        Raises:
            CaseFailedError: It did not come back with its figures.
        """
        names = [side.name for side in sides]
        self.say(f"{label}  {', '.join(names)}")
        work = self._folder / "work"
        work.mkdir()
        out = work / "answer.json"
        cases = [
            {
                "case": side.case,
                "parameters": {**self._parameters, **side.parameters},
                "work": str(work / str(number)),
                "shared": str(self._shared),
            }
            for number, side in enumerate(sides)
        ]
        try:
            _run(sides, json.dumps({"cases": cases, "out": str(out)}), work=work)
            return [Sample(**sample) for sample in json.loads(out.read_text())]
        finally:
            shutil.rmtree(work)


def _run(sides: Sequence[Side], request: str, *, work: Path) -> None:
    script = _script(sides[0])
    program = ["-c", (PEERS / script).read_text()] if script else ["-m", "benchmarks.child"]
    log = work / "log.txt"
    with open(log, "wb") as output:
        try:
            code = subprocess.run(
                [sys.executable, *program, request],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **ENVIRONMENT},
                cwd=REPOSITORY,
                timeout=TIMEOUT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise _failed(sides, f"no answer within {TIMEOUT_S:.0f} s", log) from None
    if code != 0:
        raise _failed(sides, f"exit code {code}", log)


def _failed(sides: Sequence[Side], found: str, log: Path) -> CaseFailedError:
    lines = log.read_text(errors="replace").splitlines()
    return CaseFailedError([side.name for side in sides], found=found, log="\n".join(lines[-15:]))
