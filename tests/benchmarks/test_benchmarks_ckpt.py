"""The area ``ckpt`` runs through in its small form, and its names stay as they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main

NAMES = {
    "model": {
        "save": [
            "ckpt.save",
            "write + fsync",
            "safetensors + fsync",
            "safetensors, not synced",
            "torch.save + fsync",
            "dcp.save",
            "tensorizer + fsync",
        ],
        "load, mapped": [
            "ckpt.load verify=crc32",
            "ckpt.load verify=none",
            "ckpt.load verify=sha256",
            "safetensors",
            "torch.load mmap=True",
        ],
        "load, private memory": [
            "ckpt.load mmap=False verify=crc32",
            "read, nothing verified",
            "torch.load",
            "dcp.load",
            "tensorizer",
            "tensorizer, verified",
        ],
        "verify by SHA-256": ["ckpt.verify", "hashlib, all cores", "hashlib, one thread"],
        "save in the background, time the caller is held up": ["ckpt.save_async", "copy_ alone", "dcp.async_save"],
    },
    "small": {
        "save, many small tensors": ["ckpt.save", "safetensors + fsync", "torch.save + fsync"],
        "load, many small tensors": ["ckpt.load verify=crc32", "safetensors", "torch.load mmap=True"],
    },
    "memory": {
        "extra memory while saving, memory": ["ckpt.save", "torch.save + fsync"],
        "extra memory while verifying, memory": ["ckpt.verify", "hashlib, one thread"],
    },
    "memory-8x": {
        "extra memory while saving, memory-8x": ["ckpt.save", "torch.save + fsync"],
        "extra memory while verifying, memory-8x": ["ckpt.verify", "hashlib, one thread"],
    },
    "slice": {"4 KiB of a giant, from opening it on": ["ckpt.open + slice", "pread, nothing verified"]},
}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one quick run writes."""
    file: Path = tmp_path_factory.mktemp("figures") / "ckpt.json"
    assert main(["ckpt", "--json", str(file), "--repeats", "1", "--quick"]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_figures_keep_their_names(report: dict[str, Any]) -> None:
    found: dict[str, dict[str, list[str]]] = {}
    for one in report["comparisons"]:
        found.setdefault(one["stage"], {})[one["name"]] = [side["name"] for side in one["sides"]]

    assert found == NAMES


def test_ours_stands_first_and_only_what_is_not_installed_is_left_out(report: dict[str, Any]) -> None:
    for comparison in report["comparisons"]:
        assert comparison["sides"][0]["is_ours"]
        for side in comparison["sides"]:
            assert side["skipped"] in (None, "tensorizer is not installed")
            assert side["skipped"] or side["time_ratio"] > 0
