"""The area ``live``: a patch in the memory of a GPU that holds a large model, beside torch's own calls.

Needs a CUDA device, and room for both halves in the folder of temporary files; what ``delta`` measures on the host.
"""

import torch

from benchmarks.deltas import QUICK_MIB, live
from benchmarks.errors import NoGpuError
from benchmarks.plan import Stage

FULL_MIB = 13376  # 14 GB: seven thousand million weights


def stages(is_quick: bool) -> tuple[Stage, ...]:
    """One model.

    Raises:
        NoGpuError: torch finds no CUDA device.
    """
    if not torch.cuda.is_available():
        raise NoGpuError("live")
    return plan(is_quick)


def plan(is_quick: bool, *, device: str = "cuda") -> tuple[Stage, ...]:
    """The stages, whatever there is to run them on."""
    size_mib = QUICK_MIB if is_quick else FULL_MIB
    return (
        Stage(
            name="live",
            prepare="benchmarks.cases.live:prepare",
            parameters={"size_mib": size_mib, "device": device},
            comparisons=(live(size_mib, device=device, threads={"": 1}),),
        ),
    )
