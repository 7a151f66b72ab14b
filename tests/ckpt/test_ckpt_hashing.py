"""Blocks are hashed while they are written, and while the next is made only where that leaves them as they are."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from ckpt.disk import hashing
from ckpt.disk.hashing import Hasher
from ckpt.format.digests import CHUNK_BYTES, both, chunks_of, split

LARGE = 2 * CHUNK_BYTES


def block(value: int, size: int = LARGE) -> memoryview:
    return memoryview(bytes([value]) * size)


def test_lasting_blocks_are_hashed_while_the_next_are_made_also_of_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_is_made = Event()

    def both_then(data: memoryview) -> tuple[int, bytes]:
        assert next_is_made.wait(60), "the next block was not asked for"
        return both(data)

    def second() -> Iterator[memoryview]:
        next_is_made.set()
        yield block(2)

    monkeypatch.setattr(hashing, "both", both_then)
    with Hasher(0, None) as hasher, open(tmp_path / "f", "wb") as file:
        runs = [hasher.pour(blocks, file, lasting=True) for blocks in (iter([block(1)]), second())]
        found = [run.chunks() for run in runs]

    assert found == [chunks_of([both(chunk) for chunk in split(block(value))], size_bytes=LARGE) for value in (1, 2)]


def test_a_block_that_the_next_one_overwrites_is_hashed_before(tmp_path: Path) -> None:
    room = bytearray(LARGE)

    def blocks() -> Iterator[memoryview]:
        for value in range(1, 20):
            room[:] = block(value)
            yield memoryview(room)

    with Hasher(0, None) as hasher, open(tmp_path / "f", "w+b") as file:
        found = hasher.pour(blocks(), file).chunks()
        file.seek(0)
        written = memoryview(file.read())

    assert found == chunks_of(map(both, split(written)), size_bytes=19 * LARGE)


def test_small_blocks_and_large_ones_keep_their_order(tmp_path: Path) -> None:
    runs = [[block(1), block(2, 5)], [block(3, 7)], [block(4, CHUNK_BYTES), block(5), block(6, CHUNK_BYTES + 1)], []]

    with Hasher(0, None) as hasher, open(tmp_path / "f", "wb") as file:
        poured = [hasher.pour(iter(run), file, lasting=True) for run in runs]
        found = [each.chunks() for each in poured]

    whole = [b"".join(run) for run in runs]
    assert found == [chunks_of(map(both, split(memoryview(each))), size_bytes=len(each)) for each in whole]
    assert (tmp_path / "f").read_bytes() == b"".join(whole)
