"""The area ``kernels``: its names stay, it refuses to measure a GPU without one, and its sides compute the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import kernels as area
from benchmarks import tune_kernels
from benchmarks.__main__ import main
from benchmarks.cases import kernels as cases
from benchmarks.errors import NoGpuError
from compiler.kernels import configurations
from compiler.kernels.configurations import Budget, RowConfig, TileConfig, config_for

SMALL = {"rows": 6, "columns": 16, "depth": 8}
H200 = Budget(name="NVIDIA H200", processors=132, shared_bytes=232_448)


@pytest.fixture
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def _small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "SETS_BYTES", 1024)


def test_names_stay() -> None:
    found = {
        stage.name: {comparison.name: [side.name for side in comparison.sides] for comparison in stage.comparisons}
        for stage in area.plan(False)
    }

    assert list(found) == ["products", "rows", "launches", "minilm"]
    assert found["products"]["linear + bias + silu, 4096 × 4096 × 4096"] == [
        "treering.linear_act",
        "torch.addmm alone",
        "torch, two operators",
    ]
    assert found["minilm"]["MiniLM, 32 × 128 tokens"][0] == "program (eager)"
    assert found["rows"]["add_layernorm, 4096 × 1024"] == ["treering.add_layernorm", "torch", "copy"]
    assert [len(comparisons) for comparisons in found.values()] == [6, 16, 3, 2]


@pytest.mark.usefixtures("_without_a_gpu")
def test_without_a_gpu_nothing_is_measured_and_the_reason_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", "--json", str(tmp_path / "figures.json")]) == 1
    assert tune_kernels.main(["rmsnorm", "64", "64"]) == 1

    told = capsys.readouterr().err.splitlines()
    assert told == [
        "NoGpuError: 'kernels' measures a GPU: torch finds no CUDA device, expected one. "
        "Run it on a machine that has a GPU, and torch for CUDA.",
        told[0].replace("'kernels'", "'tune_kernels'"),
    ]
    assert not (tmp_path / "figures.json").exists()
    with pytest.raises(NoGpuError):
        area.stages(True)


@pytest.mark.usefixtures("_small_sets")
@pytest.mark.parametrize("operator", cases.FORMS)
def test_what_is_compared_computes_the_same(operator: str) -> None:
    activation = "silu" if operator == "linear_act" else "gelu"

    def results(how: str) -> Any:
        return [run() for run in cases.runs_of(how, operator, **SMALL, activation=activation, device="cpu")]

    fused, apart = results("fused"), results("torch")

    assert len(fused) == len(apart) > 1
    for ours, theirs in zip(fused, apart, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("_small_sets")
@pytest.mark.parametrize("how", ["fused", "torch", "alone"])
@pytest.mark.parametrize("operator", cases.FORMS)
def test_every_side_is_timed_and_tells_its_rate(tmp_path: Path, operator: str, how: str) -> None:
    sides = cases.calls(
        work=tmp_path,
        shared=tmp_path,
        how=how,
        operator=operator,
        **SMALL,
        activation="gelu",
        device="cpu",
        seconds=1e-4,
    )
    with sides as call:
        call.run()
        figures = call.figures()

    ((name, value),) = figures.items()
    assert name == ("tflop_per_s" if operator == "linear_act" else "tb_per_s")
    assert value > 0
    assert call.units >= 2


def test_operands_are_more_than_a_cache_holds_and_bytes_are_counted_once() -> None:
    assert cases.moved_bytes("fused", "layernorm_act", 4096, 1024, 0) == 2 * 2 * 4096 * 1024
    assert cases.moved_bytes("fused", "add_layernorm", 4096, 1024, 0) == 3 * 2 * 4096 * 1024
    assert cases.moved_bytes("alone", "add_layernorm", 4096, 1024, 0) == 2 * 2 * 4096 * 1024
    assert cases.moved_bytes("fused", "linear_act", 2, 3, 5) == 2 * (10 + 15 + 6)
    assert cases.rate("fused", "linear_act", 1000, 1000, 1000, seconds=1.0) == {"tflop_per_s": 0.002}


# --- tuning -----------------------------------------------------------------------------------------------------------


def test_candidates_are_what_the_device_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "budget", lambda device: H200)
    device = torch.device("cpu")

    tiles = list(tune_kernels.candidates("linear_act", 4096, 4096, device=device))
    rows = list(tune_kernels.candidates("rmsnorm", 1000, 0, device=device))

    assert TileConfig(m=128, n=256, k=64, group=8, warps=8, stages=3, programs=0) in tiles
    assert all(isinstance(tile, TileConfig) and tile.fits(device, element_bytes=2) for tile in tiles)
    # 256 registers for the sums alone; 393,216 bytes
    assert TileConfig(m=128, n=256, k=64, group=8, warps=4, stages=3, programs=0) not in tiles
    assert TileConfig(m=128, n=256, k=128, group=8, warps=8, stages=4, programs=0) not in tiles
    assert RowConfig(rows=1, warps=2, programs=0, stages=1) in rows
    assert all(type(one).parse("any", str(one)) == one for one in (*tiles, *rows))
    assert all(isinstance(row, RowConfig) and row.programs * row.warps <= 64 for row in rows)


def test_the_fastest_come_first_as_rows_that_the_table_understands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "budget", lambda device: H200)
    monkeypatch.setattr(tune_kernels, "budget", lambda device: H200)
    device = torch.device("cpu")
    configs = [RowConfig(rows=rows, warps=4, programs=0, stages=1) for rows in (1, 2, 4)]
    timed = list(zip((3e-6, 1e-6, 2e-6), configs, strict=True))

    table = tune_kernels.fastest("rmsnorm", 4096, 1024, 0, timed=timed, device=device)

    assert [row.config for row in table] == [configs[1], configs[2], configs[0]]
    assert table[0].evidence.startswith("4096 × 1024: 1.0 µs, 16.78 tb_per_s, ")
    monkeypatch.setattr(configurations, "TABLE", tuple(table[:1]))
    configurations.row_config.cache_clear()
    try:
        assert config_for("rmsnorm", (7, 1000), torch.bfloat16, device) == configs[1]
    finally:
        configurations.row_config.cache_clear()
    assert eval(repr(table[0]), vars(configurations)) == table[0]  # what is printed can be put into the table
