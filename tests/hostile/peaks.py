"""Tell every lie of some kinds and measure what refusing it costs; run in a process of its own.

    python -m tests.hostile.peaks WORK KIND …

prints one JSON object: for each lie ``[by how many bytes the peak of memory grew, bytes on disk]``.
"""

import ctypes
import json
import sys
from pathlib import Path

import torch

import ckpt
from tests.hostile.edits import copied
from tests.hostile.gallery import KINDS
from tests.hostile.lies import Kind, Lie

_MADV_POPULATE_READ = 22  # of Linux 5.14


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


def hold_programs() -> None:
    """Make all pages of Python and its libraries resident: those that the kernel took away would count as growth."""
    libc = ctypes.CDLL(None, use_errno=True)
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    programs = {fields[-1] for fields in maps if "x" in fields[1] and fields[-1].startswith("/")}
    for span, access, *_, name in maps:
        if access.startswith("r") and name in programs:
            start, end = (int(side, 16) for side in span.split("-"))
            if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_POPULATE_READ):
                raise OSError(ctypes.get_errno(), "madvise", name)


def growth_bytes(kind: Kind, lie: Lie, path: Path) -> int:
    """By how much the peak grew while every call that can meet the lie refused it."""
    hold_programs()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, at what is resident
    before = peak_bytes()
    for name, (look, call) in kind.calls.items():
        if look >= lie.found_by:
            try:
                call(path)
            except ckpt.CheckpointError:
                continue
            raise AssertionError(f"{name} accepted {path}")
    return peak_bytes() - before


def disk_bytes(folder: Path) -> int:
    """What the files take on disk, holes not counted."""
    return sum(512 * path.lstat().st_blocks for path in folder.rglob("*"))


def main(work: Path, *kinds: str) -> None:
    torch.set_num_threads(1)
    found: dict[str, tuple[int, int]] = {}
    for kind_name in kinds:
        kind = KINDS[kind_name]
        sound = work / kind_name
        sound.mkdir()
        kind.make(sound)
        for number, (name, lie) in enumerate(kind.lies.items()):
            place = copied(sound, work / f"{kind_name}-{number}")
            lie.tell(place / kind.name)
            found[f"{kind_name} | {name}"] = growth_bytes(kind, lie, place / kind.name), disk_bytes(place)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
