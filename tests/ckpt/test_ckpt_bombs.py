"""What is small on disk stays small in memory: peaks of hostile files, measured in a process of their own."""

import json
import subprocess
import sys

import pytest

MIB = 1 << 20

# Each bomb is a file of some MiB; the child prints by how much its peak memory grew while it was refused.
_CHILD = """
import contextlib, json, sys
from pathlib import Path
import zstandard
import ckpt
from ckpt.codecs import codec
from ckpt.digests import sha256
from ckpt.proto import checkpoint_pb2 as pb
from ckpt.wire import DELTA_MAGIC, MANIFEST_MAGIC
from tests.ckpt.test_ckpt_hostile_delta import bsdiff, one, zstd

MIB = 1 << 20
work = Path(sys.argv[1])


def peak_kib():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def manifest(body, magic=MANIFEST_MAGIC, name="manifest.pb"):
    body = b"\\x08\\x01" + body
    (work / name).write_bytes(magic + len(body).to_bytes(8, "little") + body + sha256(body))
    with contextlib.suppress(ckpt.FormatError):
        (ckpt.read_manifest if name == "manifest.pb" else ckpt.read_delta)(work)
        print("accepted", file=sys.stderr)


def decode(name, encoded, size, base=b""):
    try:
        codec(name).decode(memoryview(base), memoryview(encoded), width=1, size=size)
    except ValueError:
        pass


EVERY_BYTE = codec("sparse").encode(memoryview(bytes(16 * MIB)), memoryview(b"\\1" * (16 * MIB)), width=1)
BOMBS = {
    "10 MiB of empty nodes": lambda: manifest(b"\\x22\\x00" * (5 * MIB)),
    "10 MiB of empty nodes after a group": lambda: manifest(b"\\x7b\\x7c" + b"\\x22\\x00" * (5 * MIB)),
    "10 MiB of empty frames": lambda: manifest(
        field(7, b"\\x1a\\x00" * (5 * MIB)), magic=DELTA_MAGIC, name="delta.pb"
    ),
    "10 MiB of nodes in a delta's target": lambda: manifest(
        field(6, b"\\x22\\x00" * (5 * MIB)), magic=DELTA_MAGIC, name="delta.pb"
    ),
    "10 MiB of CRCs": lambda: manifest(field(2, b"\\x08\\x01" + field(2, bytes(10 * MIB)))),
    "an endless varint": lambda: manifest(b"\\x22" + b"\\x80" * (10 * MIB)),
    "a 256 MiB stream for 64 bytes": lambda: decode("raw", one(zstd(bytes(1 << 28)), size=64), 64),
    "a 256 MiB stream for 256 MiB in 16 MiB": lambda: decode("raw", one(zstd(bytes(1 << 28)), size=1 << 28), 16 * MIB),
    "a million steps of bsdiff": lambda: decode("bsdiff", bsdiff(bytes(24 * MIB), bytes(8 * MIB), b""), 8 * MIB),
    "sparse changes of every byte": lambda: decode("sparse", EVERY_BYTE, 16 * MIB, bytes(16 * MIB)),
}
growth = {}
for name, bomb in BOMBS.items():
    open("/proc/self/clear_refs", "w").write("5")
    before = peak_kib()
    bomb()
    growth[name] = (peak_kib() - before) / 1024
print(json.dumps(growth))
"""


@pytest.fixture(scope="module")
def growth_mib(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    work = tmp_path_factory.mktemp("bombs")
    arguments = [sys.executable, "-c", _CHILD, str(work)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    found: dict[str, float] = json.loads(result.stdout)
    return found


def test_no_bomb_costs_much_more_than_it_weighs(growth_mib: dict[str, float]) -> None:
    too_much = {name: round(mib) for name, mib in growth_mib.items() if mib > 250}

    assert len(growth_mib) == 10
    assert too_much == {}
