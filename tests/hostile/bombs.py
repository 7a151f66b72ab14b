"""Small files that would become large in memory."""

from collections.abc import Callable
from pathlib import Path

from ckpt.format.wire import DELTA_MAGIC, MANIFEST_MAGIC
from tests.ckpt.safetensors_files import file_bytes
from tests.hostile.envelopes import sealed
from tests.hostile.lies import Lie
from tests.hostile.lying_envelopes import VERSION

MIB = 1 << 20


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, data: bytes) -> bytes:
    """A field of length-prefixed bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def manifest(body: Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / "manifest.pb").write_bytes(sealed(MANIFEST_MAGIC, VERSION + body()))


def delta(body: Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / "delta.pb").write_bytes(sealed(DELTA_MAGIC, VERSION + body()))


def header(unit: str, count: int) -> Callable[[Path], object]:
    """A safetensors header with a list of many small things."""
    return lambda folder: (folder / "x.safetensors").write_bytes(file_bytes('{"a":[' + unit * count + "0]}", b""))


def save_nothing(folder: Path) -> None:
    """``x``, an empty folder."""
    (folder / "x").mkdir()


RECORDS = "more than 4194304 records"
BOMBS: dict[str, Lie] = {
    "10 MiB of empty nodes": Lie(manifest(lambda: b"\x22\x00" * (5 * MIB)), RECORDS),
    "10 MiB of empty nodes after a group": Lie(
        manifest(lambda: b"\x7b\x7c" + b"\x22\x00" * (5 * MIB)), "cut short or grouped"
    ),
    "10 MiB of empty frames": Lie(delta(lambda: field(7, b"\x1a\x00" * (5 * MIB))), RECORDS),
    "10 MiB of nodes in a delta's target": Lie(delta(lambda: field(6, b"\x22\x00" * (5 * MIB))), RECORDS),
    "10 MiB of CRCs": Lie(
        manifest(lambda: field(2, b"\x08\x01" + field(2, bytes(10 * MIB)))), "expected 1 chunks of each"
    ),
    "an endless varint": Lie(manifest(lambda: b"\x22" + b"\x80" * (10 * MIB)), "cut short or grouped"),
    "8 MiB of empty storages": Lie(manifest(lambda: b"\x12\x00" * (4 * MIB - 1)), "manifest"),
    "8 MiB of empty tensors": Lie(manifest(lambda: b"\x1a\x00" * (4 * MIB - 1)), "manifest"),
    "8 MiB of empty files": Lie(manifest(lambda: b"\x2a\x00" * (4 * MIB - 1)), "manifest"),
    "8 MiB of empty attachments": Lie(manifest(lambda: b"\x32\x00" * (4 * MIB - 1)), "manifest"),
    "8 MiB of empty metadata": Lie(manifest(lambda: b"\x3a\x00" * (4 * MIB - 1)), "keys out of order or twice"),
    "8 MiB of empty pieces": Lie(manifest(lambda: b"\x52\x00" * (4 * MIB - 1)), "a tensor for each"),
    "8 MiB of empty operations": Lie(delta(lambda: b"\x3a\x00" * (4 * MIB - 1)), "delta"),
    "8 MiB of sizes": Lie(manifest(lambda: field(3, field(3, b"\1" * (8 * MIB)))), "as many of each"),
    "a header of 2^20 objects": Lie(header('{"":[]},', MIB + 2), "more than 1048578 times '{'"),
    "a header of 2^20 named objects": Lie(header('"a":{},', MIB + 2), "more than 1048578 times '{'"),
    "a header of 2^21 lists": Lie(header("[],", 2 * MIB), "more than 2097152 times '['"),
    "a header of 2^24 numbers": Lie(header("0,", 16 * MIB + 1), "more than 16777216 times ','"),
    "a header of 2^24 texts": Lie(header('"",', 16 * MIB + 1), "more than 16777216 times ','"),
    "an index of 2^20 objects": Lie(
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map":{' + '"a":{},' * (MIB + 2)),
        "more than 1048578 times '{'",
    ),
}
