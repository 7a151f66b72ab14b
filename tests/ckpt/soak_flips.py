"""Random single-bit flips of a large checkpoint: ``python -m tests.ckpt.soak_flips --work FOLDER``; not run by pytest.

Each flip falls anywhere in the folder, manifest and headers included. It must be found before a tensor is exposed: by
loading the tensor that it hits by CRC-32 (every other time by SHA-256), or where it hits none, by opening. The bit is
then put back. Takes minutes: about 5 ms a flip on one core.
"""

import argparse
import mmap
import random
import shutil
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

import ckpt

TENSOR_BYTES = 1_000_000  # not a multiple of a chunk, nor of a page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a new folder")
    parser.add_argument("--flips", type=int, default=100_000)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    options.work.mkdir(parents=True)
    began = time.monotonic()
    share = -(-options.flips // options.processes)
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = [
            pool.submit(attack, options.work / str(number), number, share, options.megabytes)
            for number in range(options.processes)
        ]
        found = sum((job.result() for job in jobs), Counter[str]())
    shutil.rmtree(options.work)
    print(f"{sum(found.values())} flips in {time.monotonic() - began:.0f} s, all found: {dict(found.most_common())}")
    return 0


def attack(folder: Path, seed: int, flips: int, megabytes: int) -> Counter[str]:
    """Make a checkpoint and flip its bits one after the other; which error found how many."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    state = {
        f"layers.{number}.weight": torch.randint(0, 256, (TENSOR_BYTES,), dtype=torch.uint8, generator=generator)
        for number in range(megabytes * 10**6 // TENSOR_BYTES)
    }
    ckpt.save(state, folder, shard_bytes=40 * TENSOR_BYTES)
    owners = Owners(folder)
    draw, found = random.Random(seed), Counter[str]()
    for number in range(flips):
        file, place = owners.anywhere(draw)
        with flipped(file, place, 1 << draw.randrange(8)):
            tensor = owners.tensor_at(file, place)
            found[caught(folder, tensor, "sha256" if number % 2 else "crc32")] += 1
    assert ckpt.verify(folder).ok
    assert set(found) <= {"CorruptChunkError", "CorruptFileError", "FormatError", "VersionError"}, found
    return found


def caught(folder: Path, tensor: str | None, level: str) -> str:
    """The error that refuses the tensor, or the folder."""
    try:
        ckpt.load(folder, keys=[] if tensor is None else [tensor], verify=level)  # type: ignore[arg-type]
    except ckpt.CheckpointError as error:
        named = not isinstance(error, ckpt.CorruptChunkError) or f"'{tensor}'" in str(error)
        return type(error).__name__ if named else f"another tensor than {tensor}: {error}"
    raise AssertionError(f"a flip in {tensor or 'a header or manifest'} was not found by {level}")


class Owners:
    """Which tensor each byte of a checkpoint belongs to."""

    def __init__(self, folder: Path) -> None:
        self._files = [(path, path.stat().st_size) for path in sorted(folder.iterdir())]
        manifest = ckpt.read_manifest(folder)
        self._ranges: dict[str, list[tuple[int, int, str]]] = {}
        for tensor in manifest.tensors:
            place = manifest.placements[tensor.storage]
            size = manifest.storages[tensor.storage].size_bytes
            name = manifest.files[place.file].name
            self._ranges.setdefault(name, []).append((place.offset, place.offset + size, tensor.name))

    def anywhere(self, draw: random.Random) -> tuple[Path, int]:
        """A byte of the folder; one in a hundred in the small files, which hold few."""
        if draw.random() < 0.01:
            path, size = draw.choice(self._files)
        else:
            path, size = draw.choices(self._files, [size for _, size in self._files])[0]
        return path, draw.randrange(size)

    def tensor_at(self, path: Path, place: int) -> str | None:
        return next((name for start, end, name in self._ranges.get(path.name, ()) if start <= place < end), None)


class flipped:  # noqa: N801 - reads as the verb that it is
    """A bit of a file turned while the block runs."""

    def __init__(self, path: Path, place: int, bit: int) -> None:
        self._path, self._place, self._bit = path, place, bit

    def _turn(self) -> None:
        with open(self._path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            view[self._place] ^= self._bit

    def __enter__(self) -> None:
        self._turn()

    def __exit__(self, *_: object) -> None:
        self._turn()


if __name__ == "__main__":
    raise SystemExit(main())
