"""What saving, verifying and deltas take: a bounded part, however large the state is."""

import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
SIZES_MIB = (64, 512)

# Prints by how much the peak grew while a state of so many MiB was saved, or its folder verified: a quarter of it in
# tensors of 4 MiB, one as one tensor, one that lies in memory in another order than on disk, one with gaps.
_CHILD = """
import os, sys
from pathlib import Path
import torch
import ckpt
from tests.hostile.peaks import peak_bytes

call, path, size_mib = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
os.cpu_count = lambda: 16
size = size_mib << 20
state = [torch.full((4 << 20,), number, dtype=torch.uint8) for number in range(size_mib // 16)]
state.append(torch.ones(size // 4, dtype=torch.uint8))
state.append(torch.ones(size // 4, dtype=torch.uint8).view(64, 64, -1).permute(2, 0, 1))
state.append(torch.ones(size // 4, dtype=torch.uint8)[::2])
if call != "save":
    attachment = path.with_suffix(".bin")
    attachment.write_bytes(bytes(size // 4))
    ckpt.save(state, path, attachments={"a": attachment})
    state.clear()
Path("/proc/self/clear_refs").write_text("5")
before = peak_bytes()
if call == "save":
    ckpt.save(state, path)
else:
    assert ckpt.verify(path, verify=call).ok
print(peak_bytes() - before)
"""


@pytest.mark.parametrize(
    "call", ["save", *(pytest.param(verify, marks=pytest.mark.slow) for verify in ("crc32", "sha256"))]
)
def test_a_state_eight_times_as_large_takes_no_more_memory_beside_it(call: str, tmp_path: Path) -> None:
    grown_mib = []
    for size_mib in SIZES_MIB:
        arguments = [call, str(tmp_path / str(size_mib)), str(size_mib)]
        done = subprocess.run([sys.executable, "-c", _CHILD, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        grown_mib.append(int(done.stdout) / MIB)

    small, large = grown_mib
    assert large <= 64
    assert large <= small + 40  # which is what all cores have in hand at once


# Prints by how much the peak grew while a delta of so many MiB was made, applied or inverted: blocks of rows that moved
# and were trained, of which no chunk is as it was.
_DELTA_CHILD = """
import ctypes, os, sys
from pathlib import Path
import torch
import ckpt
from tests.hostile.peaks import peak_bytes

call, path, size_mib = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
os.cpu_count = lambda: 2
rows = torch.randint(0, 1 << 15, (size_mib << 8, 2048), dtype=torch.int16, generator=torch.Generator().manual_seed(0))
ckpt.save({"w": rows}, path / "old")
parts = rows.split(1111)
moved = torch.cat([parts[(7 * number) % len(parts)] for number in range(len(parts))])
moved[:, ::3] ^= 1
ckpt.save({"w": moved}, path / "new")
del rows, parts, moved
calls = {
    "diff": lambda: ckpt.diff(path / "old", path / "new", path / "delta"),
    "apply": lambda: ckpt.apply(path / "old", path / "delta", path / "made"),
    "invert": lambda: ckpt.invert(path / "delta", path / "back", base=path / "old"),
}
if call != "diff":
    calls["diff"]()
ctypes.CDLL(None).malloc_trim(0)  # what is free would hide what is taken
Path("/proc/self/clear_refs").write_text("5")
before = peak_bytes()
calls[call]()
print(peak_bytes() - before)
"""


@pytest.mark.parametrize(
    "call", ["apply", *(pytest.param(other, marks=pytest.mark.slow) for other in ("diff", "invert"))]
)
def test_a_delta_four_times_as_large_takes_no_more_memory(call: str, tmp_path: Path) -> None:
    grown_mib = []
    for size_mib in (64, 256):
        (tmp_path / str(size_mib)).mkdir()
        arguments = [call, str(tmp_path / str(size_mib)), str(size_mib)]
        done = subprocess.run(
            [sys.executable, "-c", _DELTA_CHILD, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        grown_mib.append(int(done.stdout) / MIB)

    small, large = grown_mib
    assert large <= 256
    assert large <= small + 64, grown_mib


# Prints by how much the peak grew while a delta of 1 % was staged over so many MiB, beyond what the patch keeps.
_STAGING = """
import os, sys
from pathlib import Path
import torch
import ckpt
from tests.hostile.peaks import peak_bytes

folder, size_mib = Path(sys.argv[1]), int(sys.argv[2])
os.cpu_count = lambda: 16
torch.manual_seed(0)
live = {"w": torch.randn(size_mib << 19).bfloat16()}
manifest = ckpt.save(live, folder / "base")
live["w"].view(torch.int16)[::100] += 1
ckpt.save(live, folder / "target")
live["w"].view(torch.int16)[::100] -= 1
ckpt.diff(folder / "base", folder / "target", folder / "delta", codecs=["sparse"])
Path("/proc/self/clear_refs").write_text("5")
before = peak_bytes()
patch = ckpt.stage(folder / "delta", live, manifest=manifest)
print(peak_bytes() - before - patch.size_bytes)
"""


@pytest.mark.slow
def test_staging_takes_some_frames_beside_what_is_kept_however_large_the_memory(tmp_path: Path) -> None:
    grown_mib = []
    for size_mib in (64, 256):
        arguments = [str(tmp_path / f"{size_mib}"), f"{size_mib}"]
        done = subprocess.run([sys.executable, "-c", _STAGING, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        grown_mib.append(int(done.stdout) / MIB)

    small, large = grown_mib
    assert large <= 192
    assert large <= small + 64  # four times the memory
