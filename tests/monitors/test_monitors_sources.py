"""Host figures: what is there, and nothing where nothing is."""

from types import SimpleNamespace

import pynvml
import pytest

from monitors.sources import host_samples

T0 = 1_790_000_000_000


def test_the_host_has_a_processor_and_memory() -> None:
    figures = {sample.name: sample.value for sample in host_samples(now_ms=T0)}

    assert 0 < figures["treering_host_memory_used_bytes"] < figures["treering_host_memory_total_bytes"]
    assert 0 <= figures["treering_host_cpu_percent"] <= 100


def test_a_machine_without_a_driver_gives_no_gpu_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)

    assert not [sample for sample in host_samples(now_ms=T0) if sample.name.startswith("DCGM")]


def test_gpu_figures_carry_dcgms_names_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": object(),
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=12),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3 * 2**20, free=5 * 2**20),
        "nvmlDeviceGetPowerUsage": 250_500,
        "nvmlDeviceGetTemperature": 61,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)

    gpu = {sample.name: sample for sample in host_samples(now_ms=T0) if sample.name.startswith("DCGM")}

    assert {name.removeprefix("DCGM_FI_DEV_"): sample.value for name, sample in gpu.items()} == {
        "GPU_UTIL": 37, "MEM_COPY_UTIL": 12, "FB_USED": 3, "FB_FREE": 5, "POWER_USAGE": 250.5, "GPU_TEMP": 61,
    }  # fmt: skip
    assert dict(gpu["DCGM_FI_DEV_GPU_UTIL"].labels)["UUID"] == "GPU-1"
