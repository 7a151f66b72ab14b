"""The harnesses of the fuzzer: they accept what is sound, find nothing in a few changes, and notice what is wrong."""

from pathlib import Path
from random import Random

import pytest

import ckpt
from ckpt.deltas.codecs import CODECS
from ckpt.proto.delta_pb2 import Delta
from tests.hostile import fuzz_targets
from tests.hostile.fuzz_targets import TARGETS, mutated, packed, target, unpacked


def changed(data: bytes, most: int, choose: Random) -> bytes:
    """A few bytes changed, put in or taken out."""
    out = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        place = choose.randint(0, len(out))
        out[place : place + choose.randint(0, 2)] = choose.randbytes(choose.randint(0, 2))
    return bytes(out[:most])


# As many as a second or two allow.
TRIES = {"manifest": 600, "signatures": 200, "frame": 4000, "header": 600, "index": 300}


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_changes_find_nothing(name: str, tmp_path: Path) -> None:
    harness, choose = target(name, tmp_path), Random(2)

    for number in range(TRIES.get(name, 60)):
        data = packed(harness.seeds[number % len(harness.seeds)])
        for _ in range(number % 4):
            data = mutated(
                harness,
                data,
                lambda part, most: changed(part, most, choose),
                seed=choose.randrange(2**32),
                most=1 << 17,
            )
        harness.attack(unpacked(data, len(harness.messages)))


@pytest.mark.parametrize("name", ["checkpoint", "trusted", "signatures", "delta", "header", "index"])
def test_the_first_seed_reaches_the_end(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness whose input is refused at once would find nothing for ever."""
    harness = target(name, tmp_path)
    last = {"checkpoint": "load", "trusted": "load", "signatures": "verify", "delta": "read_delta"}.get(name, "load")
    seen: list[object] = []
    call = getattr(ckpt, last)
    monkeypatch.setattr(fuzz_targets.ckpt, last, lambda *args, **more: seen.append(call(*args, **more)) or seen[-1])

    harness.attack(harness.seeds[0])

    assert seen


def test_codecs_of_every_kind_are_among_the_seeds(tmp_path: Path) -> None:
    harness = target("delta", tmp_path)

    deltas = [Delta.FromString(seed[0]) for seed in harness.seeds]

    operations = (each for delta in deltas for each in (*delta.storages, *delta.attachments))
    assert {frame.codec for each in operations for frame in each.frames} >= {"contextual", "moved", "chain", "bsdiff"}
    assert set(fuzz_targets._CODECS) == set(CODECS)


def test_an_error_of_another_kind_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = target("manifest", tmp_path)

    def broken(_: object) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(fuzz_targets, "check", broken)

    with pytest.raises(KeyError, match="broken"):
        harness.attack(harness.seeds[0])
