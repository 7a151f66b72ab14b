"""The area ``compiler`` runs through in its small form, which compiles nothing with ``torch.compile``."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.compiling import stages


@pytest.mark.slow
def test_every_side_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "compiler.json"

    assert main(["compiler", "--json", str(file), "--repeats", "1", "--quick"]) == 0

    comparisons = json.loads(file.read_text())["comparisons"]
    planned = [[side.name for side in one.sides] for stage in stages(True) for one in stage.comparisons]
    assert [[side["name"] for side in one["sides"]] for one in comparisons] == planned
    for one in comparisons:
        assert one["sides"][0]["is_ours"]
        for side in one["sides"]:
            assert side["seconds"]["min"] > 0


def test_both_models_are_asked_beside_every_peer_in_full() -> None:
    names = {stage.name: [side.name for side in stage.comparisons[0].sides] for stage in stages(False)}

    assert list(names) == ["resnet18", "minilm", "resnet18 again", "minilm again"]
    for sides in (names["resnet18"], names["minilm"]):
        assert {"eager PyTorch", "torch.compile", "torch.compile, freezing", "ONNX Runtime"} <= set(sides)
