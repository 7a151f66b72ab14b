"""States on a GPU: the same root as on the CPU, staged through little host memory, and snapshots in stream order."""

from pathlib import Path

import pytest
import torch

import ckpt
from benchmarks.peak import growth_bytes, set_mark

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]


def state_on(device: str) -> dict[str, torch.Tensor]:
    """Every way in which bytes lie in memory; the same values on every device."""
    torch.manual_seed(0)
    base = torch.rand(1_000_000)
    flat, image = base.to(device), torch.rand(4, 3, 9, 9).to(device)
    return {
        "whole": flat,
        "tied": flat,
        "middle": flat[1000:2000].view(10, 100),
        "every": torch.rand(5000).to(device)[::7],
        "channels_last": image.to(memory_format=torch.channels_last),
        "half": torch.rand(777).to(device).bfloat16(),
        "eighth": torch.rand(99).to(device).to(torch.float8_e4m3fn),
        "step": torch.tensor(7, device=device),
        "empty": torch.empty(0, 3, device=device),
    }


def test_a_state_has_one_root_wherever_it_is(tmp_path: Path) -> None:
    on_cpu, on_gpu = state_on("cpu"), state_on("cuda")

    root = ckpt.save(on_cpu, tmp_path / "cpu").root

    assert ckpt.save(on_gpu, tmp_path / "gpu").root == root
    assert ckpt.save_async(on_gpu, tmp_path / "later").result(60).root == root
    loaded = ckpt.load(tmp_path / "gpu", device="cuda")
    assert all(tensor.is_cuda for tensor in loaded.values())
    assert loaded["tied"].data_ptr() == loaded["whole"].data_ptr()
    assert loaded["middle"].untyped_storage().data_ptr() == loaded["whole"].untyped_storage().data_ptr()
    assert ckpt.save(loaded, tmp_path / "again").root == root


def test_saving_takes_little_memory_of_the_host(tmp_path: Path) -> None:
    state = {f"w{number}": torch.rand(2**26, device="cuda") for number in range(4)}
    ckpt.save({"w": torch.rand(2**24, device="cuda")}, tmp_path / "first")  # what the driver takes once

    mark = set_mark()
    ckpt.save(state, tmp_path / "c")

    assert growth_bytes(mark) <= 64 << 20


def test_a_snapshot_holds_what_was_asked_of_the_stream_before_and_nothing_after(tmp_path: Path) -> None:
    weights = torch.zeros(2**26, device="cuda")
    other = torch.rand(4096, 4096, device="cuda")

    for step in (1, 2, 3):
        for _ in range(20):
            other = other @ other.softmax(0)  # work that the copy must wait for
        weights.add_(1)
        pending = ckpt.save_async({"w": weights}, tmp_path / str(step))
        weights.add_(100)
        pending.result(60)
        weights.sub_(100)
        assert ckpt.load(tmp_path / str(step))["w"].eq(step).all()
