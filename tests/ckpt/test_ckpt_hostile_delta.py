"""Whoever edits a delta or its frames and seals them again is refused, and neither base nor destination changes."""

import struct
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckpt
from ckpt import delta as ckpt_delta
from ckpt.codecs import codec
from ckpt.codecs.streams import join
from ckpt.delta import Action
from ckpt.digests import Chunks
from ckpt.proto.delta_pb2 import Delta, Frame, Operation
from tests.ckpt.hostile import Edit, copied, mutate, put, refresh_frames, rewrite_delta, save_pair, tensor

HUGE = 2**63
DIGEST = b"\7" * 32


def operation(message: Delta, name: str) -> Operation:
    return message.storages[tensor(message.target, name).storage]


def frame(message: Delta, name: str, number: int = 0) -> Frame:
    return operation(message, name).frames[number]


LIES: dict[str, Edit] = {
    "an unknown version": lambda d: put(d, format_version=9),
    "an unknown version of the target": lambda d: put(d.target, format_version=9),
    "half a root": lambda d: put(d, base_root=DIGEST[:9]),
    "another base": lambda d: put(d, base_root=DIGEST),
    "another target root": lambda d: put(d, target_root=DIGEST),
    "another target seal": lambda d: put(d, target_seal=DIGEST),
    "an operation less": lambda d: d.storages.pop(),
    "an operation too many": lambda d: d.attachments.add(action=Action.COPY),
    "an unknown action": lambda d: put(d.storages[0], action=9),
    "a base out of range": lambda d: put(operation(d, "same"), base=99),
    "a base of 2^31": lambda d: put(operation(d, "same"), base=2**31),
    "another base storage": lambda d: put(operation(d, "sparse"), base=0),
    "new content with a base": lambda d: put(operation(d, "fresh"), base=1),
    "a copy with frames": lambda d: operation(d, "same").frames.append(frame(d, "dense")),
    "a copy with digests": lambda d: put(d.target.storages[tensor(d.target, "same").storage], crc32=[1], sha256=DIGEST),
    "a copy with half the digests": lambda d: put(d.target.storages[tensor(d.target, "same").storage], sha256=DIGEST),
    "a copy of another size": lambda d: put(d.target.storages[tensor(d.target, "same").storage], size=8),
    "a target with files": lambda d: d.target.files.add(name="weights-00001-00000000.safetensors"),
    "a target with places": lambda d: put(d.target.storages[0], offset=8),
    "a frame less": lambda d: operation(d, "sparse").frames.pop(),
    "a frame twice": lambda d: operation(d, "sparse").frames.append(frame(d, "sparse")),
    "a frame off a chunk's boundary": lambda d: put(frame(d, "sparse"), offset=7),
    "a frame beyond its storage": lambda d: put(frame(d, "sparse"), offset=2**30),
    "a frame at 2^63": lambda d: put(frame(d, "sparse"), offset=HUGE),
    "a frame of 2^63 bytes": lambda d: put(frame(d, "sparse"), size=HUGE),
    "a frame of no bytes": lambda d: put(frame(d, "sparse"), size=0),
    "a frame that ends inside a chunk": lambda d: put(frame(d, "sparse"), size=1000, base_size=1000),
    "a base run beyond the base": lambda d: put(frame(d, "table"), base_offset=2**20),
    "a base run of 2^63": lambda d: put(frame(d, "table"), base_size=HUGE),
    "a base run of another size": lambda d: put(frame(d, "dense"), base_size=8),
    "a base run of nothing, somewhere": lambda d: put(frame(d, "fresh"), base_offset=8),
    "a width of 0": lambda d: put(frame(d, "sparse"), width=0),
    "a width of 3": lambda d: put(frame(d, "sparse"), width=3),
    "another width": lambda d: put(frame(d, "dense"), width=8),
    "an unknown codec": lambda d: put(frame(d, "sparse"), codec="pickle"),
    "another codec": lambda d: put(frame(d, "sparse"), codec="raw"),
    "a frame that claims to be reversible": lambda d: put(frame(d, "fresh"), reversible=True),
    "a frame that claims not to be": lambda d: put(frame(d, "sparse"), reversible=False),
    "another frame's digest": lambda d: put(frame(d, "sparse"), sha256=frame(d, "dense").sha256),
    "half a digest": lambda d: put(frame(d, "sparse"), sha256=DIGEST[:3]),
    "a patch out of range": lambda d: put(frame(d, "sparse"), patch=5),
    "bytes beyond the patch": lambda d: put(frame(d, "sparse"), patch_offset=HUGE),
    "encoded bytes beyond counting": lambda d: put(frame(d, "sparse"), encoded_size=2**40),
    "no encoded bytes": lambda d: put(frame(d, "sparse"), encoded_size=0),
    "two frames from the same bytes": lambda d: put(frame(d, "dense"), patch_offset=frame(d, "sparse").patch_offset),
    "a patch with another name": lambda d: put(d.patches[0], name="../patch-00001.bin"),
    "a longer patch": lambda d: put(d.patches[0], size=d.patches[0].size + 1),
    "a patch that no frame uses": lambda d: d.patches.add(name="patch-00002.bin", size=1),
    "an attachment upwards": lambda d: put(d.target.attachments[0], path="../evil"),
    "an attachment of another size": lambda d: put(d.target.attachments[0], size=3),
    "a tensor of another shape": lambda d: put(tensor(d.target, "dense"), shape=[999]),
    "another state": lambda d: put(d.target.state[1], data=b"x"),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile-delta")
    save_pair(folder)
    return folder


@pytest.mark.parametrize("lie", [pytest.param(edit, id=lie) for lie, edit in LIES.items()])
def test_a_lie_with_a_right_checksum_is_refused(lie: Edit, pair: Path, tmp_path: Path) -> None:
    delta = copied(pair / "delta", tmp_path / "d")
    rewrite_delta(delta, lie)

    with pytest.raises((ckpt.FormatError, ckpt.DeltaError)):
        ckpt.apply(pair / "old", delta, tmp_path / "made")

    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    assert ckpt.verify(pair / "old").ok


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), inside=st.booleans())
def test_any_mutation_is_refused_or_makes_what_it_states(
    seed: int, inside: bool, pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    work = tmp_path_factory.mktemp("mutated")
    delta = copied(pair / "delta", work / "d")
    if inside:
        refresh_frames(delta, Random(seed))
    else:
        rewrite_delta(delta, lambda message: mutate(message, Random(seed)))

    try:
        made = ckpt.apply(pair / "old", delta, work / "made")
    except ckpt.CheckpointError:
        assert [path.name for path in work.iterdir()] == ["d"]
        return
    assert made.seal == ckpt.read_delta(delta).target_seal


def test_no_encoded_byte_is_used_twice(pair: Path, tmp_path: Path) -> None:
    delta = copied(pair / "delta", tmp_path / "d")

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
    longer = Chunks(size_bytes=3 << 20, crc32=(1, 2), sha256=DIGEST * 2)
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
    "more changes than elements": ("sparse", struct.pack("<I", 2**31)),
    "a change beyond the end": (
        "sparse",
        struct.pack("<I", 1) + join([b"\xff", struct.pack("<I", 2**31), b"\1", b"\1"]),
    ),
    "planes of another size": ("planes", join([bytes(9), bytes(9)])),
    "steps that add a negative number": ("bsdiff", bsdiff(steps((-1, 65, 0)), b"", bytes(65))),
    "steps that take a negative number": ("bsdiff", bsdiff(steps((65, -1, 0)), bytes(65), b"")),
    "steps before the base": ("bsdiff", bsdiff(steps((1, 0, -9), (63, 0, 0)), bytes(64), b"")),
    "steps beyond the base": ("bsdiff", bsdiff(steps((1, 0, 99), (63, 0, 0)), bytes(64), b"")),
    "a step of 2^63": ("bsdiff", bsdiff(steps((HUGE - 1, 0, 0)), bytes(64), b"")),
    "a seek that overflows": ("bsdiff", bsdiff(steps((1, 0, HUGE - 1), (63, 0, 0)), bytes(64), b"")),
    "steps for more than the target": ("bsdiff", bsdiff(steps((64, 1, 0)), bytes(64), b"x")),
    "steps for less than the target": ("bsdiff", bsdiff(steps((1, 0, 0)), bytes(64), b"")),
    "more steps than bytes": ("bsdiff", bsdiff(steps(*[(0, 0, 0)] * 65), bytes(64), b"")),
}


@pytest.mark.parametrize("name", ENCODED)
def test_a_decoder_refuses(name: str) -> None:
    kind, encoded = ENCODED[name]

    with pytest.raises(ValueError, match=r"\S"):
        codec(kind).decode(memoryview(bytes(64)), memoryview(encoded), width=2, size=64)
