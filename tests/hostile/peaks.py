"""Tell every lie of some kinds and measure what refusing it costs; run in a process of its own.

    python -m tests.hostile.peaks WORK KIND …

prints one JSON object: for each lie ``[by how many bytes the peak of memory grew, bytes on disk]``.
"""

import json
import sys
from pathlib import Path

import torch

import ckpt
from tests.hostile.edits import copied
from tests.hostile.gallery import KINDS
from tests.hostile.lies import Kind, Lie


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


def growth_bytes(kind: Kind, lie: Lie, path: Path) -> int:
    """By how much the peak grew while every call that can meet the lie refused it."""
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
