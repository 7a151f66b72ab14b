"""Which CPU native code needs: an instruction set by name, and what it uses beyond that.

A requirement reads ``x86-64-v3``, or ``x86-64-v3+avx512f+avx512vl``: the base that every x86 server of the last ten
years has, and each further extension by the name that Linux gives it. Code made for *this* machine states all
extensions that a compiler or Inductor might use here, so another machine can tell before it loads the code whether it
could run it.

Source: the levels of the x86-64 psABI; GCC 12, x86 options.
"""

import platform
from functools import cache
from pathlib import Path
from typing import Final

BASE: Final = "x86-64-v3"
NATIVE: Final = "native"
CPU_LISTING: Final = Path("/proc/cpuinfo")

_BASE_FLAGS: Final = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
# What compilers use without being asked by name, and what Inductor's own kernels ask for.
_EXTENSIONS: Final = frozenset(
    """
    avx512f avx512cd avx512bw avx512dq avx512vl avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg
    avx512_vpopcntdq avx512_bf16 avx512_fp16 avx512_vp2intersect avx_vnni gfni amx_tile amx_int8 amx_bf16 amx_fp16
    sse4a xop fma4 tbm
    """.split()  # noqa: SIM905 (a list of one word a line would fill the page)
)


def requirement_here(asked: str) -> str:
    """``native`` spelled out for this machine; anything else as it is."""
    return "+".join([BASE, *sorted(_EXTENSIONS & _flags(CPU_LISTING))]) if asked == NATIVE else asked


def lacks(requirement: str) -> str:
    """What this machine lacks of a requirement, for a message; empty when it has everything."""
    base, *extensions = requirement.split("+")
    if base != BASE:
        return f"{base!r} is no instruction set that is known here"
    if platform.machine() != "x86_64":
        return f"this machine is {platform.machine()}"
    here = _flags(CPU_LISTING)
    if not here:
        return f"{CPU_LISTING} lists no CPU flags"
    missing = (_BASE_FLAGS | set(extensions)) - here
    return f"this CPU lacks {', '.join(sorted(missing))}" if missing else ""


def extensions(requirement: str) -> int:
    """How many extensions it uses beyond its base: the more, the nearer to the machine."""
    return requirement.count("+")


@cache
def _flags(listing: Path) -> frozenset[str]:
    for line in listing.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()
