"""Figures of the host: processor, memory, and GPUs where there are any.

GPU figures carry the names of NVIDIA's DCGM exporter, so that dashboards made for it work. A machine without a GPU or
its driver gives no GPU samples at all, not zeros: a zero would say that an idle GPU is there.
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pynvml

from monitors.store import Sample

MIB = 2**20  # DCGM's unit of memory


def host_samples(*, now_ms: int) -> list[Sample]:
    """Processor use since the last call (percent of one core each) and memory, then the GPUs."""
    memory = psutil.virtual_memory()
    figures = {
        "treering_host_cpu_percent": psutil.cpu_percent(interval=None),
        "treering_host_memory_used_bytes": float(memory.total - memory.available),
        "treering_host_memory_total_bytes": float(memory.total),
    }
    labels = (("host", platform.node()),)
    host = [Sample(name=name, labels=labels, at_ms=now_ms, value=value) for name, value in figures.items()]
    with _nvml() as available:
        return host + (_gpu_samples(now_ms=now_ms) if available else [])


@contextmanager
def _nvml() -> Iterator[bool]:
    """NVML while it is open; False where there is no driver to open it on."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def _gpu_samples(*, now_ms: int) -> list[Sample]:
    samples = []
    for number in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(number)
        use, memory = pynvml.nvmlDeviceGetUtilizationRates(gpu), pynvml.nvmlDeviceGetMemoryInfo(gpu)
        figures = {
            "DCGM_FI_DEV_GPU_UTIL": use.gpu,
            "DCGM_FI_DEV_MEM_COPY_UTIL": use.memory,
            "DCGM_FI_DEV_FB_USED": memory.used / MIB,
            "DCGM_FI_DEV_FB_FREE": memory.free / MIB,
            "DCGM_FI_DEV_POWER_USAGE": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "DCGM_FI_DEV_GPU_TEMP": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        }
        labels = (("UUID", pynvml.nvmlDeviceGetUUID(gpu)), ("gpu", str(number)), ("host", platform.node()))
        samples += [
            Sample(name=name, labels=labels, at_ms=now_ms, value=float(value)) for name, value in figures.items()
        ]
    return samples
