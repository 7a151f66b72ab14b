"""The record of a live patch: after a kill it takes memory from any state between to either end, or is refused."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ckpt
from tests.ckpt.equality import same
from tests.ckpt.live_states import State, live_at, manifest, memories, several_on_disk, untouched

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return several_on_disk(tmp_path_factory.mktemp("several"))


@pytest.fixture
def kept(pair: Path, tmp_path: Path) -> tuple[State, Path]:
    """Live memory at ``0``, and the record of the patch that is staged over it."""
    live = live_at(pair, 0)
    ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0)).save(tmp_path / "record")
    return live, tmp_path / "record"


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_record_takes_memory_from_any_state_between_to_either_end(
    share: float, pair: Path, kept: tuple[State, Path]
) -> None:
    live, record = kept
    before = memories(live)
    first = ckpt.staged(record, live)
    for write in first._writes:
        done = int(len(write.old) * share)
        if write.positions is None:
            write.part[:done] = write.new[:done]
        else:
            replace(write, positions=write.positions[:done]).put(write.new[:done])

    with untouched(live):
        patch = ckpt.staged(record, live)
    patch.apply()

    assert same(live, ckpt.load(pair / "1"))
    assert patch.confirm().root == manifest(pair, 1).root
    ckpt.staged(record, live).undo()
    assert memories(live) == before


def test_a_record_says_what_was_begun_and_what_was_done(kept: tuple[State, Path]) -> None:
    live, record = kept
    words = [ckpt.staged(record, live).state]
    patch = ckpt.staged(record, live)
    for call in (patch.apply, patch.undo):
        call()
        words.append(ckpt.staged(record, live).state)
    broken = replace(patch._writes[0], positions=None, new=torch.empty(3))
    patch._writes = [broken]

    with pytest.raises(RuntimeError):
        patch.apply()

    assert [*words, ckpt.staged(record, live).state] == ["staged", "applied", "undone", "applying"]


def test_a_record_is_discarded_whole(kept: tuple[State, Path]) -> None:
    live, record = kept
    patch = ckpt.staged(record, live)

    patch.discard()
    patch.apply()
    patch.discard()

    assert list(record.parent.iterdir()) == []
    with pytest.raises(ckpt.NotACheckpointError):
        ckpt.staged(record, live)


def test_a_record_is_never_replaced(kept: tuple[State, Path]) -> None:
    live, record = kept

    with pytest.raises(ckpt.DestinationError):
        ckpt.staged(record, live).save(record)


def test_memory_that_others_changed_is_refused_by_chunk(kept: tuple[State, Path]) -> None:
    live, record = kept
    live["sparse"][1] += 1  # element 0 is written by the patch, this one is not

    with untouched(live), pytest.raises(ckpt.LiveChunkError) as caught:
        ckpt.staged(record, live)

    assert (caught.value.owner, caught.value.chunk) == ("the storage of 'sparse'", 0)


def test_a_flipped_bit_of_a_record_is_refused(kept: tuple[State, Path]) -> None:
    live, record = kept
    for file in sorted(path for path in record.rglob("*") if path.is_file()):
        data = file.read_bytes()
        for place in (len(data) // 3, len(data) - 1):
            file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with untouched(live), pytest.raises((ckpt.FormatError, ckpt.IntegrityError)):
                ckpt.staged(record, live)
        file.write_bytes(data)

    ckpt.staged(record, live)


def edited(record: Path, change: Callable[[Any], object]) -> None:
    """A record that says something else, with right checksums."""
    state = ckpt.load(record / "patch", mmap=False)
    change(state)
    ckpt.save(state, record / "patch", overwrite=True)


LIES: dict[str, tuple[Callable[[Any], object], str]] = {
    "another state": (lambda state: state.update(more=1), "another state, expected that of a live patch"),
    "no list": (lambda state: state.update(writes=5), "writes: found a int, expected a list"),
    "no manifest": (lambda state: state.update(base=7), "base: found a int"),
    "no write": (lambda state: state["writes"].append({"start": 1}), "something else"),
    "a storage too many": (lambda state: state["writes"][0].update(storage=99), "storage 99"),
    "a start below": (lambda state: state["writes"][0].update(start=-5), "expected ascending ones of"),
    "a start beyond": (
        lambda state: state["writes"][0].update(start=1 << 40),
        "expected ascending ones of",
    ),
    "no values": (lambda state: state["writes"][0].update(old=3), "old: found a int"),
    "fewer values": (lambda state: state["writes"][0].update(new=torch.zeros(999)), "999 elements"),
    "floats": (lambda state: state["writes"][0].update(new=state["writes"][0]["new"].double()), "float64"),
    "positions that are floats": (
        lambda state: state["writes"][sparse_of(state)].update(positions=torch.ones(2).repeat(1)),
        "elements, expected|float32, expected int32",
    ),
    "positions in disorder": (
        lambda state: state["writes"][sparse_of(state)].update(
            positions=state["writes"][sparse_of(state)]["positions"].flip(0).clone()
        ),
        "expected ascending ones of",
    ),
}


def sparse_of(state: Any) -> int:
    """The first write of the record that has positions."""
    return next(
        index for index, write in enumerate(state["writes"]) if write["positions"] is not None and len(write["old"]) > 1
    )


@pytest.mark.parametrize("case", LIES)
def test_a_record_that_makes_no_sense_is_refused(case: str, kept: tuple[State, Path]) -> None:
    live, record = kept
    change, found = LIES[case]
    edited(record, change)

    with untouched(live), pytest.raises(ckpt.FormatError, match=found):
        ckpt.staged(record, live)


@pytest.mark.parametrize("name", ["old", "new"])
def test_a_record_with_other_values_is_refused_by_the_digests(name: str, kept: tuple[State, Path]) -> None:
    live, record = kept
    edited(record, lambda state: state["writes"][0][name].add_(1))

    with untouched(live), pytest.raises(ckpt.LiveChunkError):
        ckpt.staged(record, live)


@pytest.mark.slow
def test_a_writer_killed_at_any_point_leaves_what_the_record_mends() -> None:
    """30 processes, each killed somewhere within apply or undo over shared memory; see ``kill_live``."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ckpt.kill_live", "--rounds", "30", "--seed", "5"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rounds"] == 30
    assert told["torn"] > 0  # memory that was neither the base nor the target
