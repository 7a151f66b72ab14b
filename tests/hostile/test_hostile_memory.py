"""What is small on disk stays small in memory while it is refused: peaks of every lie, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt.format.bounds import MAX_RECORDS
from tests.hostile.gallery import KINDS

MIB = 1 << 20
RECORD_BYTES = 100  # of a message of two bytes when it is parsed

# Encoded frames that decode to far more than they weigh; the child prints by how much each let its peak grow.
_DECODING = """
import json
import zstandard
from ckpt.deltas.codecs import codec
from tests.hostile.peaks import peak_bytes
from tests.hostile.test_hostile_frames import bsdiff, one, zstd

MIB = 1 << 20
EVERY_BYTE = codec("sparse").encode(memoryview(bytes(16 * MIB)), memoryview(b"\\1" * (16 * MIB)), width=1)
BOMBS = {
    "a 256 MiB stream for 64 bytes": ("raw", one(zstd(bytes(1 << 28)), size=64), 64, b""),
    "a 256 MiB stream for 256 MiB in 16 MiB": ("raw", one(zstd(bytes(1 << 28)), size=1 << 28), 16 * MIB, b""),
    "a million steps of bsdiff": ("bsdiff", bsdiff(bytes(24 * MIB), bytes(8 * MIB), b""), 8 * MIB, b""),
    "sparse changes of every byte": ("sparse", EVERY_BYTE, 16 * MIB, bytes(16 * MIB)),
}
growth = {}
for name, (kind, encoded, size, base) in BOMBS.items():
    open("/proc/self/clear_refs", "w").write("5")
    before = peak_bytes()
    try:
        codec(kind).decode(memoryview(base), memoryview(encoded), width=1, size=size)
    except ValueError:
        pass
    growth[name] = peak_bytes() - before
print(json.dumps(growth))
"""


def child(*arguments: str) -> dict[str, object]:
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("bomb",), id="bombs"),
        pytest.param(tuple(name for name in KINDS if name != "bomb"), id="others", marks=pytest.mark.slow),
    ],
)
def test_refusing_a_lie_takes_no_more_memory_than_twice_what_lies_on_disk(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    """Beside it a fixed amount: for threads and libraries, and in a bomb for as many records as a body may have."""
    fixed = MAX_RECORDS * RECORD_BYTES if kinds == ("bomb",) else 24 * MIB

    peaks = child("-m", "tests.hostile.peaks", str(tmp_path), *kinds)

    assert len(peaks) == sum(len(KINDS[name].lies) for name in kinds)
    assert {name: peak for name, peak in peaks.items() if peak[0] > 2 * peak[1] + fixed} == {}  # type: ignore[index]


def test_decoding_a_frame_takes_a_few_times_its_declared_size_at_most() -> None:
    too_much = {name: size for name, size in child("-c", _DECODING).items() if size > 200 * MIB}  # type: ignore[operator]

    assert too_much == {}
