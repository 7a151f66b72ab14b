"""The area ``pipeline`` runs through in its small form: every side of every stage, the real servers included."""

import json
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.pipeline import stages

pytestmark = pytest.mark.integration

STAGES = ["ingest", "train", "program", "checkpoint", "delta", "registry"]


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one quick run writes."""
    file = tmp_path_factory.mktemp("figures") / "made" / "pipeline.json"
    assert main(["pipeline", "--json", str(file), "--repeats", "1", "--quick"]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_the_document_has_its_schema(report: dict[str, Any]) -> None:
    assert report["schema"] == "treering-benchmark/1"
    assert list(report) == [
        "schema",
        "area",
        "command",
        "date",
        "is_quick",
        "repeats",
        "duration_s",
        "load_average",
        "environment",
        "machine",
        "comparisons",
    ]
    assert list(report["machine"]) == [
        "cpu",
        "cores",
        "memory_bytes",
        "kernel",
        "gpu",
        "python",
        "libraries",
        "commit",
        "modified",
    ]
    for comparison in report["comparisons"]:
        assert list(comparison) == ["stage", "name", "note", "sides"]


def test_every_side_of_every_stage_is_measured_or_left_out_with_a_reason(report: dict[str, Any]) -> None:
    planned = {
        (stage.name, comparison.name): [side.name for side in comparison.sides]
        for stage in stages(True)
        for comparison in stage.comparisons
    }

    found = {(one["stage"], one["name"]): [side["name"] for side in one["sides"]] for one in report["comparisons"]}

    assert found == planned
    assert list(dict.fromkeys(stage for stage, _ in found)) == STAGES


def test_every_measured_side_has_positive_figures(report: dict[str, Any]) -> None:
    for side in (side for comparison in report["comparisons"] for side in comparison["sides"]):
        if side["skipped"] is not None:
            continue
        assert 0 < side["seconds"]["min"] <= side["seconds"]["median"] <= side["seconds"]["max"]
        assert side["peak_extra_bytes"]["min"] >= 0
        assert side["memory_method"] in ("VmHWM", "ru_maxrss", "ru_maxrss of the program")
        assert side["time_ratio"] > 0
        assert all(figure["min"] > 0 for figure in side["figures"].values())


def test_ours_is_always_measured_and_stands_first(report: dict[str, Any]) -> None:
    for comparison in report["comparisons"]:
        first = comparison["sides"][0]
        assert first["is_ours"]
        assert first["time_ratio"] == 1.0
        assert not all(side["is_ours"] for side in comparison["sides"])


def test_every_patch_is_smaller_than_what_it_makes(report: dict[str, Any]) -> None:
    ratios = {
        (comparison["name"], side["name"]): side["figures"]["compression_ratio"]["min"]
        for comparison in report["comparisons"]
        for side in comparison["sides"]
        if "compression_ratio" in side.get("figures", {})
    }

    assert len([name for name, _ in ratios if name.startswith("diff:")]) >= 3
    assert all(ratio > 1 for ratio in ratios.values())
