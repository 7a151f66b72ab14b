"""Pairs are made once, are what their names say, and keep their names."""

from pathlib import Path

import pytest
import torch

import ckpt
from benchmarks import pairs
from benchmarks.pairs.__main__ import main
from benchmarks.pairs.changes import changed_share

NAMES = [
    "mnist-head",
    "mnist-full",
    *(
        f"minilm-{kind}-lr{rate}-steps{steps}"
        for kind in ("fp32", "bf16")
        for rate in ("1e-6", "1e-5", "1e-4")
        for steps in (1, 10, 100)
    ),
    "minilm-lora-fp32",
    "minilm-lora-bf16",
    "minilm-rows-fp32",
    "minilm-rows-bf16",
    "minilm-appended-fp32",
    "minilm-inserted-fp32",
    "minilm-state-fp32",
    "synthetic-bf16-0.1%",
    "synthetic-bf16-1%",
    "synthetic-bf16-10%",
    "synthetic-bf16-70%",
]
QUICK = pairs.sources(is_quick=True, synthetic_mib=8)


@pytest.mark.parametrize("is_quick", [True, False])
def test_pairs_keep_their_names(is_quick: bool) -> None:
    assert [name for source in pairs.sources(is_quick=is_quick, synthetic_mib=8) for name in source.pairs] == NAMES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("mnist-head", 0.006, 0.007),  # 650 of 101,394 numbers, the statistics of batch norm among them
        ("minilm-bf16-lr1e-5-steps1", 0.01, 0.5),
        ("minilm-lora-bf16", 0.01, 0.14),  # queries and values are 14 % of one layer and 512 words
        ("minilm-rows-fp32", 0.0001, 0.1),
        ("minilm-state-fp32", 0.5, 0.99),
        ("synthetic-bf16-1%", 0.0099, 0.0101),
    ],
)
def test_as_much_changes_as_the_name_says(tmp_path: Path, name: str, least: float, most: float) -> None:
    pairs.make(QUICK, tmp_path, names=[name])

    assert least <= changed_share(tmp_path / name / "base", tmp_path / name / "target") <= most


def test_a_pair_is_the_same_whenever_it_is_made_and_is_not_made_twice(tmp_path: Path) -> None:
    name = "minilm-bf16-lr1e-4-steps10"
    pairs.make(QUICK, tmp_path / "first", names=[name, "minilm-bf16-lr1e-4-steps1"])
    pairs.make(QUICK, tmp_path / "second", names=[name])
    before = [(tmp_path / "first" / name / half).stat().st_ino for half in pairs.HALVES]

    pairs.make(QUICK, tmp_path / "first", names=[name])

    assert [(tmp_path / "first" / name / half).stat().st_ino for half in pairs.HALVES] == before
    for half in pairs.HALVES:
        first, second = (ckpt.read_manifest(tmp_path / made / name / half) for made in ("first", "second"))
        assert first.root == second.root


def test_rows_are_inserted_and_no_other_row_changes(tmp_path: Path) -> None:
    pairs.make(QUICK, tmp_path, names=["minilm-inserted-fp32"])

    base, target = (ckpt.load(tmp_path / "minilm-inserted-fp32" / half) for half in pairs.HALVES)
    table, wider = base.pop("embeddings.words.weight"), target.pop("embeddings.words.weight")
    assert torch.equal(torch.cat([wider[:256], wider[356:]]), table)
    assert all(torch.equal(base[name], target[name]) for name in base)


def test_the_state_of_a_training_goes_on_from_its_base(tmp_path: Path) -> None:
    pairs.make(QUICK, tmp_path, names=["minilm-state-fp32"])

    base, target = (ckpt.load(tmp_path / "minilm-state-fp32" / half) for half in pairs.HALVES)
    assert (base["step"], target["step"]) == (10, 11)
    assert {float(slot["step"]) for slot in target["optimizer"]["state"].values()} == {11.0}


def test_the_share_counts_bits_and_what_is_new(tmp_path: Path) -> None:
    ckpt.save({"a": torch.tensor([0.0, 0.0, torch.nan, 2.0]), "gone": torch.ones(5)}, tmp_path / "base")
    ckpt.save(
        {"a": torch.tensor([-0.0, -0.0, torch.nan, 2.0, 3.0]), "new": torch.ones(3), "none": torch.ones(0)},
        tmp_path / "target",
    )

    assert changed_share(tmp_path / "base", tmp_path / "target") == 6 / 8


def test_the_command_prints_what_it_made_and_refuses_what_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path), "--quick", "--synthetic-mib", "8", "--only"]

    assert main([*arguments, "synthetic-bf16-10%"]) == 0
    assert main([*arguments, "no-such-pair"]) == 1

    printed = capsys.readouterr()
    assert printed.out.split()[:3] == ["synthetic-bf16-10%", "8.0", "MiB"]
    assert "there is no pair 'no-such-pair'; expected one of: mnist-head, " in printed.err
