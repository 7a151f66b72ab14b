"""How measurements are taken, on cases of this file: in turn, each in its own process, nothing silently left out."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import benchmarks
from benchmarks import Call, Comparison, Side, Stage, peak
from benchmarks.__main__ import main
from benchmarks.document import document
from benchmarks.errors import NoGpuError
from benchmarks.outcome import Outcome, Sample, SideOutcome
from benchmarks.running import run_stages
from benchmarks.table import table

MIB = 1 << 20


# --- cases, found by their names in this file's module ----------------------------------------------------------------


@contextmanager
def prepare(*, work: Path, shared: Path) -> Iterator[Call]:
    yield Call(run=lambda: (shared / "turns").write_text(""))


@contextmanager
def take_turn(*, work: Path, shared: Path, name: str) -> Iterator[Call]:
    def run() -> None:
        with open(shared / "turns", "a") as file:
            file.write(f"{name} {os.getpid()}\n")

    def figures() -> dict[str, float]:
        return {"turns": len((shared / "turns").read_text().splitlines()), "left_over_files": len(list(work.iterdir()))}

    yield Call(run=run, figures=figures)
    (work / "litter").write_text("to be removed")


@contextmanager
def grow(*, work: Path, shared: Path, size_mib: int) -> Iterator[Call]:
    before = bytearray(64 * MIB)  # held before the call: must not count
    yield Call(run=lambda: len(bytearray(size_mib * MIB)))
    del before


@contextmanager
def fail(*, work: Path, shared: Path) -> Iterator[Call]:
    def run() -> None:
        raise RuntimeError("the disk is on fire")

    yield Call(run=run)


@pytest.fixture(autouse=True)
def _cases_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def case(name: str) -> str:
    return f"{Path(__file__).stem}:{name}"


def turn(name: str, *, needs: tuple[str, ...] = (), is_ours: bool = False) -> Side:
    return Side(name=name, case=case("take_turn"), parameters={"name": name}, needs=needs, is_ours=is_ours)


def stage(*sides: Side, most_repeats: int | None = None) -> Stage:
    comparison = Comparison(name="comparison", sides=sides, note="a note", most_repeats=most_repeats)
    return Stage(name="stage", prepare=case("prepare"), comparisons=(comparison,))


def run(*sides: Side, repeats: int = 1, together: bool = False, most_repeats: int | None = None) -> Outcome:
    stages = [stage(*sides, most_repeats=most_repeats)]
    (outcome,) = run_stages(stages, repeats=repeats, together=together, say=lambda line: None)
    return outcome


def test_sides_take_turns() -> None:
    outcome = run(turn("A", is_ours=True), turn("B"), repeats=3)

    first, second = outcome.sides
    assert [sample.figures["turns"] for sample in first.samples] == [1, 3, 5]
    assert [sample.figures["turns"] for sample in second.samples] == [2, 4, 6]


def test_each_measurement_starts_in_an_empty_folder() -> None:
    outcome = run(turn("A", is_ours=True), repeats=2)

    assert [sample.figures["left_over_files"] for sample in outcome.sides[0].samples] == [0, 0]


def test_a_comparison_may_ask_for_fewer_rounds() -> None:
    outcome = run(turn("A", is_ours=True), repeats=5, most_repeats=1)

    assert len(outcome.sides[0].samples) == 1


def test_the_growth_of_one_call_is_measured_and_not_what_was_there_before() -> None:
    grown = Side(name="grown", case=case("grow"), parameters={"size_mib": 32}, is_ours=True)
    still = Side(name="still", case=case("grow"), parameters={"size_mib": 0})

    outcome = run(grown, still)

    growths = [side.peak_extra_bytes.median / MIB for side in outcome.sides]
    assert 31 <= growths[0] <= 40
    assert growths[1] <= 8


def test_without_the_high_water_mark_the_greatest_memory_ever_stands_in_and_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peak, "_PROCESS", tmp_path / "no-proc")

    mark = peak.set_mark()

    assert mark.method == "ru_maxrss"
    assert peak.growth_bytes(mark) >= 0


@pytest.mark.parametrize("need", ["no_such_module", "program:no-such-program"])
def test_a_peer_that_is_not_installed_is_left_out_with_the_reason(need: str) -> None:
    outcome = run(turn("A", is_ours=True), turn("peer", needs=(need,)))

    missing = f"{need.removeprefix('program:')} is not installed"
    assert missing in table([outcome])
    sides = document([outcome], facts={})["comparisons"][0]["sides"]
    assert [side["skipped"] for side in sides] == [None, f"{need} is not installed"]
    assert "seconds" in sides[0]
    assert "seconds" not in sides[1]


def test_a_failing_side_says_so_with_the_end_of_its_log_and_the_others_are_measured() -> None:
    heard: list[str] = []
    broken = Side(name="broken", case=case("fail"))
    outcomes = run_stages(
        [stage(turn("A", is_ours=True), broken, turn("B"))], repeats=2, together=False, say=heard.append
    )
    (outcome,) = outcomes

    first, failed, last = document([outcome], facts={})["comparisons"][0]["sides"]
    assert [first["rounds"], last["rounds"]] == [2, 2]
    assert failed["failed"].startswith("measuring broken: exit code 1")
    assert "the disk is on fire" in failed["failed"]
    assert "seconds" not in failed
    assert "failed: measuring broken: exit code 1" in table([outcome])
    assert sum("the disk is on fire" in line for line in heard) == 1  # it is not tried again


def test_a_stage_that_cannot_be_prepared_fails_whole() -> None:
    unprepared = replace(stage(turn("A", is_ours=True)), prepare=case("fail"))
    (outcome,) = run_stages([unprepared], repeats=1, together=False, say=lambda line: None)

    assert not outcome.sides[0].is_measured
    assert "the disk is on fire" in (outcome.sides[0].failed or "")


def test_what_was_measured_beside_a_failing_side_is_written_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = Side(name="broken", case=case("fail"))
    monkeypatch.setattr("benchmarks.pipeline.stages", lambda is_quick: (stage(turn("A", is_ours=True), broken),))

    assert main(["pipeline", "--json", str(tmp_path / "figures.json"), "--repeats", "1"]) == 1

    assert "without what failed: broken" in capsys.readouterr().err
    written = json.loads((tmp_path / "figures.json").read_text())
    assert [side["failed"] is None for side in written["comparisons"][0]["sides"]] == [True, False]


def test_ratios_are_taken_round_by_round() -> None:
    def outcome_of(*seconds: float, is_ours: bool = False) -> SideOutcome:
        samples = tuple(Sample(seconds=s, peak_extra_bytes=0, memory_method="VmHWM", figures={}) for s in seconds)
        return SideOutcome(side=turn("side", is_ours=is_ours), samples=samples)

    ours, peer = outcome_of(1.0, 10.0, 2.0, is_ours=True), outcome_of(3.0, 30.0, 40.0)  # busy from the second round on
    outcome = Outcome(stage="stage", comparison=stage().comparisons[0], sides=(ours, peer))

    assert outcome.time_ratio(peer) == 3.0
    assert (peer.seconds.low, peer.seconds.median, peer.seconds.high) == (3.0, 30.0, 40.0)


def test_an_unknown_area_lists_the_known_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["no-such-area", "--json", str(tmp_path / "figures.json")])

    assert code == 1
    assert (
        "no area 'no-such-area'; expected one of: ckpt, compiler, delta, kernels, live, pipeline"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "figures.json").exists()


def test_no_round_at_all_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["pipeline", "--json", str(tmp_path / "figures.json"), "--repeats", "0"])

    assert "expected at least 1" in capsys.readouterr().err


def test_every_area_of_the_table_is_there() -> None:
    for name in benchmarks.AREAS:
        try:
            stages = benchmarks.find_area(name)(True)
        except NoGpuError:
            continue  # what it would measure is in test_benchmarks_kernels
        assert stages
        assert all(stage.comparisons for stage in stages)


def test_planning_an_area_imports_no_torch_and_no_mlflow() -> None:
    code = "import sys, benchmarks.__main__, benchmarks.deltas, benchmarks.pipeline; print(*sys.modules)"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not {"torch", "mlflow"} & set(found.stdout.split())


def test_what_the_package_exports() -> None:
    assert benchmarks.__all__ == [
        "AREAS",
        "BenchmarkError",
        "Call",
        "Comparison",
        "Side",
        "Stage",
        "UnknownAreaError",
        "find_area",
    ]
