"""The area ``delta`` runs through in its small form, its names stay as they are, and its bounds are what they say."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import ckpt
from benchmarks import deltas
from benchmarks import live as live_area
from benchmarks.__main__ import main
from benchmarks.cases import differs
from benchmarks.cases.bounds import bits_of
from benchmarks.running import run_stages
from tests.benchmarks.test_benchmarks_pairs import NAMES as PAIRS

QUICK_PEERS = ["zstd -3 --patch-from", "xdelta3", "z4ai", "ZipNN of the XOR", "indices + values, zstd -3"]
SLOW_PEERS = ["bsdiff4", "HDiffPatch, zstd", "zstd -19 --patch-from", "detools"]
OPTIONAL = {"pyxdelta", "z4ai", "zipnn", "hdiffpatch", "detools"}
SPEED = {
    "sparse": "synthetic-bf16-1%",
    "dense": "synthetic-bf16-70%",
}
LIVE = {
    "sparse": {
        "live apply of 1 % to 1024 MiB": [
            "ckpt.stage(…).apply, all cores",
            "ckpt.stage(…).apply, one thread",
            "torch index_copy_",
            "torch index_put_",
            "copy_ of everything",
        ]
    }
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one quick run writes."""
    file: Path = tmp_path_factory.mktemp("figures") / "delta.json"
    assert main(["delta", "--json", str(file), "--repeats", "1", "--quick"]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_every_pair_has_a_stage_and_names_stay() -> None:
    found = {
        stage.name: {comparison.name: [side.name for side in comparison.sides] for comparison in stage.comparisons}
        for stage in deltas.stages(False)
    }

    assert list(found) == [*PAIRS, "sparse", "dense", "loops", "memory", "memory-8x"]
    assert found["mnist-head"] == {"mnist-head": ["ckpt.diff", *QUICK_PEERS, *SLOW_PEERS, "bounds"]}
    assert found["minilm-bf16-lr1e-5-steps1"] == {
        "minilm-bf16-lr1e-5-steps1": ["ckpt.diff", *QUICK_PEERS, "bounds"],
        "minilm-bf16-lr1e-5-steps1, of which 'layers.0.' alone": ["ckpt.diff", *SLOW_PEERS, "bounds"],
    }
    assert found["minilm-inserted-fp32"] == {
        "minilm-inserted-fp32": ["ckpt.diff", *QUICK_PEERS],
        "minilm-inserted-fp32, of which 'embeddings.words.' alone": ["ckpt.diff", *SLOW_PEERS],
    }
    for name, pair in SPEED.items():
        assert found[name] == {
            f"encode 1024 MiB {pair}": [
                "ckpt.diff",
                "ckpt.diff without contextual",
                "compare alone, one thread",
                "hashlib over both, one thread",
            ],
            f"decode into memory 1024 MiB {pair}": [
                "ckpt.apply",
                "ckpt.apply without contextual",
                "hashlib, all cores",
            ],
            f"apply to a folder 1024 MiB {pair}": ["ckpt.apply", "ckpt.apply without contextual", "write + fsync"],
            **LIVE.get(name, {}),
        }
    loops = ["codec contextual", "codec sparse", "codec planes", "hashlib over the target"]
    assert found["loops"] == {
        "one thread, 64 MiB of bfloat16 in frames of 8 MiB, 1 % changed": loops,
        "one thread, 64 MiB of bfloat16 in frames of 1 MiB, 70 % changed": loops,
    }
    for name in ("memory", "memory-8x"):
        assert found[name] == {f"extra memory, {name}": ["ckpt.diff", "ckpt.apply"]}


@pytest.mark.slow
def test_a_quick_run_measures_every_side_that_is_installed(report: dict[str, Any]) -> None:
    planned = [
        (stage.name, comparison.name, [side.name for side in comparison.sides])
        for stage in deltas.stages(True)
        for comparison in stage.comparisons
    ]

    found = [(one["stage"], one["name"], [side["name"] for side in one["sides"]]) for one in report["comparisons"]]

    assert found == planned
    for comparison in report["comparisons"]:
        assert comparison["sides"][0]["is_ours"]
        for side in comparison["sides"]:
            assert side["skipped"] is None or side["skipped"].removesuffix(" is not installed") in OPTIONAL
            assert side["skipped"] or side["time_ratio"] > 0


@pytest.mark.slow
def test_ratios_stand_for_ours_and_every_peer_and_ours_keeps_below_the_zero_order_bound(report: dict[str, Any]) -> None:
    (row,) = (one for one in report["comparisons"] if one["name"] == "synthetic-bf16-1%")
    figures = {side["name"]: side["figures"] for side in row["sides"] if not side["skipped"]}
    bounds = figures.pop("bounds")

    assert all(one["compression_ratio"]["min"] > 1 and one["decode_s"]["min"] > 0 for one in figures.values())
    assert 170 < bounds["zero_order_ratio"]["min"] < 180  # 16 bits ÷ (0.0808 of the mask at 1 % + 0.01 of signs)
    assert 100 < figures["ckpt.diff"]["ratio_without_digests"]["max"] < bounds["zero_order_ratio"]["min"]


@pytest.mark.slow
def test_loops_alone_are_measured_both_ways(report: dict[str, Any]) -> None:
    rows = [one for one in report["comparisons"] if one["stage"] == "loops"]

    for row in rows:
        *codecs, hashing = (side["figures"] for side in row["sides"])
        assert all(one["encode_gb_per_processor_s"]["min"] > 0 for one in codecs)
        assert all(one["decode_gb_per_processor_s"]["min"] > 0 for one in codecs)
        assert hashing["gb_per_processor_s"]["min"] > 0
    assert len(rows) == 2


@pytest.mark.slow
def test_versions_of_peers_and_programs_are_written_down(report: dict[str, Any]) -> None:
    assert {*OPTIONAL, "bsdiff4", "program:zstd"} <= set(report["machine"]["libraries"])
    assert report["machine"]["libraries"]["program:zstd"]


# --- bounds -----------------------------------------------------------------------------------------------------------


def entropy(*shares: float) -> float:
    return -sum(share * math.log2(share) for share in shares)


def save_pair(folder: Path, base: dict[str, Tensor], target: dict[str, Tensor]) -> tuple[Path, Path]:
    for half, state in (("base", base), ("target", target)):
        ckpt.save(state, folder / half)
        save_file(state, folder / f"{half}.safetensors")
    return folder / "base", folder / "target"


@pytest.mark.parametrize(("dtype", "integers"), [(torch.bfloat16, torch.int16), (torch.float32, torch.int32)])
def test_bounds_are_entropies_of_differences_alone_and_under_the_exponent(
    tmp_path: Path, dtype: torch.dtype, integers: torch.dtype
) -> None:
    base = torch.tensor([1.0] * 400 + [4.0] * 400, dtype=dtype)
    steps = torch.tensor([1] * 100 + [-1] * 100 + [0] * 200 + [0] * 400, dtype=integers)
    target = (base.view(integers) + steps).view(dtype)
    other = {"unchanged": torch.ones(1000, dtype=dtype), "count": torch.ones(10, dtype=torch.int64)}
    pair = save_pair(tmp_path, {"a": base, **other}, {"a": target, **other})

    zero_order, given_exponent = bits_of(*pair)

    assert zero_order == pytest.approx(800 * entropy(0.125, 0.125, 0.75))
    assert given_exponent == pytest.approx(400 * entropy(0.25, 0.25, 0.5))  # exponent 2 of 4.0 tells: nothing changes


def test_what_the_base_does_not_have_counts_in_full(tmp_path: Path) -> None:
    rows = torch.ones(4, 8)
    pair = save_pair(tmp_path, {"a": rows}, {"a": torch.ones(5, 8), "new": torch.ones(3, dtype=torch.bfloat16)})

    assert bits_of(*pair) == (8 * 32 + 3 * 16, 8 * 32 + 3 * 16)


# --- peers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["zstd -3", "bsdiff4", "changed values"])
def test_a_peers_patch_gives_the_target_back(tmp_path: Path, tool: str) -> None:
    base = {"same": torch.ones(100), "some": torch.rand(1000), "grown": torch.ones(3, 4), "half": torch.ones(5).half()}
    target = {**base, "some": base["some"].clone(), "grown": torch.ones(4, 4), "new": torch.zeros(2, 2)}
    target["some"][::10] += 1
    target["half"] = torch.full((5,), -0.0).half()
    save_pair(tmp_path / "whole", base, target)
    (tmp_path / "work").mkdir()

    with differs.patch(work=tmp_path / "work", shared=tmp_path, part="whole", tool=tool) as call:
        call.run()
        figures = call.figures()

    size_bytes = (tmp_path / "whole" / "target.safetensors").stat().st_size
    assert figures["compression_ratio"] == size_bytes / figures["patch_bytes"] > 1


def test_a_peer_that_gives_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_pair(tmp_path / "whole", {"a": torch.zeros(3)}, {"a": torch.ones(3)})
    liar = (lambda base, target, made: made.write_bytes(b"?"), lambda base, made, out: out.write_bytes(b"?"))
    monkeypatch.setattr(differs, "TOOLS", {"liar": lambda: liar})

    with differs.patch(work=tmp_path, shared=tmp_path, part="whole", tool="liar") as call:
        call.run()
        with pytest.raises(ValueError, match="liar: base and patch give other bytes than the target's"):
            call.figures()


# --- one stage, one more area -----------------------------------------------------------------------------------------


def test_a_patch_in_live_memory_is_measured_and_proved_on_the_device_that_is_named(tmp_path: Path) -> None:
    (stage,) = live_area.plan(True, device="cpu")

    (outcome,) = run_stages([stage], repeats=1, together=True, say=lambda line: None)

    assert [side.side.name for side in outcome.sides if side.is_measured] == [
        "ckpt.stage(…).apply",
        "torch index_copy_",
        "torch index_put_",
        "copy_ of everything",
    ]
    assert outcome.sides[0].figures["memory_bytes"].median == 8 << 20


def test_a_stage_that_there_is_not_is_told_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["delta", "--json", str(tmp_path / "f"), "--quick", "--stage", "loop"]) == 1

    assert "there is no stage 'loop'; expected one of: minilm-bf16" in capsys.readouterr().err
