"""Encoded frames that lie: no byte is used twice, no chunk taken from a shorter one, no decoder believes its input."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import zstandard

import ckpt
from ckpt.deltas import delta as ckpt_delta
from ckpt.deltas.codecs import chain, codec
from ckpt.deltas.codecs.chain import Step
from ckpt.deltas.codecs.streams import join
from ckpt.deltas.delta import Action
from ckpt.format.digests import Chunks
from ckpt.proto.delta_pb2 import Delta
from tests.hostile.edits import put, rewrite_delta, save_pair
from tests.hostile.lying_deltas import DIGEST, HUGE, frame


def test_no_encoded_byte_is_used_twice(tmp_path: Path) -> None:
    save_pair(tmp_path)
    delta = tmp_path / "delta"

    def edit(message: Delta) -> None:
        one, two = frame(message, "sparse"), frame(message, "dense")
        put(two, patch_offset=one.patch_offset, encoded_size=one.encoded_size, sha256=one.sha256)

    rewrite_delta(delta, edit)

    with pytest.raises(ckpt.FormatError, match="end to end in their patch"):
        ckpt.read_delta(delta)


def test_a_chunk_is_not_taken_from_a_shorter_one(tmp_path: Path) -> None:
    """The base ends inside its second chunk; the target's second chunk is whole and comes from no frame."""
    old, new = (torch.full((3 << 19,), value, dtype=torch.uint8) for value in (1, 2))
    ckpt.save({"w": old}, tmp_path / "old")
    ckpt.save({"w": new}, tmp_path / "new")
    delta = ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "d")
    first = replace(delta.storages[0].frames[0], size=1 << 20)
    longer = Chunks(size_bytes=3 << 20, crc32=bytes(8), sha256=DIGEST * 2)
    patched = ckpt_delta.Operation(action=Action.PATCH, frames=(first, replace(first, offset=2 << 20)))
    lying = replace(delta, storages=(patched,), target=replace(delta.target, storages=(longer,)))

    with pytest.raises(ckpt.FormatError, match="a frame where the base has no such chunk"):
        lying.completed(ckpt.read_manifest(tmp_path / "old"), tmp_path)


ZEROS = bytes(1 << 20)
_stream = struct.Struct("<BII").pack


def zstd(data: bytes, *, states_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=states_size).compress(data)


def one(packed: bytes, *, size: int, form: int = 1) -> bytes:
    return _stream(form, size, len(packed)) + packed


def steps(*triples: tuple[int, int, int]) -> bytes:
    """bsdiff's steps: magnitudes with the sign in the highest bit."""
    return b"".join(
        (abs(number) | (HUGE if number < 0 else 0)).to_bytes(8, "little") for triple in triples for number in triple
    )


def bsdiff(control: bytes, differences: bytes, extra: bytes) -> bytes:
    return struct.pack("<II", len(control) // 24, len(extra)) + join([control, differences, extra])


def moved(*runs: tuple[int, int, int], within: int = 3, count: int | None = None) -> bytes:
    """Runs of (bytes since the last one, size, place in the base), and planes of what differs: nothing."""
    records = b"".join(struct.pack("<IIQ", *run) for run in runs)
    planes = b"".join(records[place::16] for place in range(16))
    head = struct.pack("<BI", within, len(runs) if count is None else count)
    return head + join([planes]) + join([bytes(32)] * 2)


def changes(count: int, *streams: bytes, shift: int = 0) -> bytes:
    """Of ``sparse``: gaps, their rests, their lowest bits, signs, planes of sizes."""
    return struct.pack("<BI", shift, count) + join(streams)


def step(**fields: object) -> bytes:
    """A chain of one step, which is sound where nothing else is said."""
    encoded = one(bytes(64), size=64, form=0)
    sound = Step(codec="raw", width=1, read_offset=0, read_size=0, offset=0, size=64, whole=False, encoded=encoded)
    return chain.join([replace(sound, **fields)])  # type: ignore[arg-type]


ENCODED: dict[str, tuple[str, bytes]] = {
    "nothing": ("raw", b""),
    "a stream that is larger than stated": ("raw", one(zstd(ZEROS * 100), size=64)),
    "a stream that states another size": ("raw", one(zstd(ZEROS), size=len(ZEROS))),
    "a stream that states no size": ("raw", one(zstd(bytes(64), states_size=False), size=64)),
    "two zstd frames": ("raw", one(zstd(bytes(64)) * 2, size=64)),
    "rubbish after a zstd frame": ("raw", one(zstd(bytes(64)) + b"hidden", size=64)),
    "a skippable frame": ("raw", one(struct.pack("<II", 0x184D2A50, 8) + bytes(8), size=64)),
    "bytes after the last stream": ("raw", one(bytes(64), size=64, form=0) + b"x"),
    "a stream cut short": ("raw", one(bytes(64), size=64, form=0)[:-1]),
    "an unknown form": ("raw", one(bytes(64), size=64, form=7)),
    "more changes than elements": ("sparse", changes(2**31)),
    "a change beyond the end": ("sparse", changes(1, b"\x20", b"", b"", b"\0", b"\0", b"\0")),
    "a change far beyond the end": ("sparse", changes(1, b"\xff", struct.pack("<I", 2**31), b"", b"\0", b"\0", b"\0")),
    "bits of gaps that are longer than the target": ("sparse", changes(4, shift=4)),
    "gaps less 25 bits": ("sparse", changes(1, b"\0", b"", bytes(4), b"\0", b"\0", b"\0", shift=25)),
    "planes of another size": ("planes", join([bytes(9), bytes(9)])),
    "steps that add a negative number": ("bsdiff", bsdiff(steps((-1, 65, 0)), b"", bytes(65))),
    "steps that take a negative number": ("bsdiff", bsdiff(steps((65, -1, 0)), bytes(65), b"")),
    "steps before the base": ("bsdiff", bsdiff(steps((1, 0, -9), (63, 0, 0)), bytes(64), b"")),
    "steps beyond the base": ("bsdiff", bsdiff(steps((1, 0, 99), (63, 0, 0)), bytes(64), b"")),
    "a step of 2^63": ("bsdiff", bsdiff(steps((HUGE - 1, 0, 0)), bytes(64), b"")),
    "a seek that overflows": ("bsdiff", bsdiff(steps((1, 0, HUGE - 1), (63, 0, 0)), bytes(64), b"")),
    "steps for more than the target": ("bsdiff", bsdiff(steps((64, 1, 0)), bytes(64), b"x")),
    "steps for less than the target": ("bsdiff", bsdiff(steps((1, 0, 0)), bytes(64), b"")),
    "a chain of nothing": ("chain", b"\0"),
    "a chain of 65 steps": ("chain", b"\x41" + step()[1:] * 65),
    "a chain in a chain": ("chain", step(codec="chain", encoded=step())),
    "a step by an unknown codec": ("chain", step(codec="pickle")),
    "a step that reads beyond": ("chain", step(read_offset=1, read_size=64)),
    "a step that reads at 2^32": ("chain", step(read_offset=2**32 - 1, read_size=64)),
    "a step that writes beyond": ("chain", step(offset=1)),
    "a step of another size": ("chain", step(size=63)),
    "a step of 4 GiB": ("chain", step(size=2**32 - 1, whole=True)),
    "a step of all bytes, somewhere": ("chain", step(offset=1, whole=True)),
    "a step that reads less than it changes": (
        "chain",
        step(codec="planes", width=8, read_size=32, encoded=join([bytes(8)] * 8)),
    ),
    "a step of elements of 0 bytes": (
        "chain",
        step(codec="sparse", width=0, read_size=64, encoded=changes(0)),
    ),
    "a step of elements of 6 bytes": (
        "chain",
        step(codec="sparse", width=6, read_size=64, encoded=changes(0, *[b""] * 10)),
    ),
    "a chain cut short": ("chain", step()[:-1]),
    "bytes after the last step": ("chain", step() + b"x"),
    "more steps than bytes": ("bsdiff", bsdiff(steps(*[(0, 0, 0)] * 65), bytes(64), b"")),
    "half a head of moved": ("moved", b"\3\0\0"),
    "moved within moved": ("moved", moved((0, 64, 0), within=4)),
    "a codec without a number": ("moved", moved((0, 64, 0), within=0)),
    "a run beyond the base": ("moved", moved((0, 9, 60))),
    "a run at 2^63": ("moved", moved((0, 9, HUGE))),
    "a run at 2^64 - 1": ("moved", moved((0, 9, 2 * HUGE - 1))),
    "a run beyond the target": ("moved", moved((60, 9, 0))),
    "runs beyond the target": ("moved", moved((0, 40, 0), (0, 40, 0))),
    "runs of 2^32 in sum": ("moved", moved((2**32 - 1, 1, 0), (0, 64, 0))),
    "a run of nothing": ("moved", moved((0, 0, 0))),
    "more runs than stated": ("moved", moved((0, 9, 0), (0, 9, 0), count=1)),
    "more runs than bytes": ("moved", moved(*[(0, 1, 0)] * 4)),
    "bytes after what is within": ("moved", moved((0, 64, 0)) + b"x"),
}


@pytest.mark.parametrize("name", ENCODED)
def test_a_decoder_refuses(name: str) -> None:
    kind, encoded = ENCODED[name]

    with pytest.raises(ValueError, match=r"\S"):
        codec(kind).decode(memoryview(bytes(64)), memoryview(encoded), width=2, size=64)


@pytest.mark.parametrize("width", [0, 3, 6, 255])
@pytest.mark.parametrize("name", ["contextual", "sparse", "planes", "moved"])
def test_elements_of_another_width_are_refused(name: str, width: int) -> None:
    encoded = codec(name).encode(memoryview(bytes(60)), memoryview(bytes(60)), width=2)
    empty = changes(0, *[b""] * (4 + width))

    for lie in (encoded, empty):
        with pytest.raises(ValueError, match=r"\S"):
            codec(name).decode(memoryview(bytes(60)), memoryview(lie), width=width, size=60)


def test_a_run_of_the_whole_target_is_not_refused() -> None:
    base = bytes(range(64))

    assert codec("moved").decode(memoryview(base), memoryview(moved((0, 64, 0))), width=2, size=64) == base


def test_a_chain_that_makes_another_size_is_refused_with_its_frame() -> None:
    """Its decoder need not know what the last step leaves; whoever asked for a frame counts."""
    shorter = step(size=32, whole=True, encoded=one(bytes(32), size=32, form=0))

    assert len(chain.decode(memoryview(bytes(64)), memoryview(shorter), width=1, size=64)) == 32
