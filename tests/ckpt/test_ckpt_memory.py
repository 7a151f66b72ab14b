"""What saving and verifying take beside the state: at most 64 MiB, however large it is, on 16 cores as on 2."""

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


@pytest.mark.parametrize("call", ["save", "crc32", "sha256"])
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
