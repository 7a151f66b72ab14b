"""How fast a delta is made and applied, and what the machine could do at most with the same bytes."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import PROT_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import ckpt
from benchmarks.pairs import HALVES, make, sources
from benchmarks.pairs.changes import changes
from benchmarks.plan import Call, Figures
from ckpt.deltas.codecs import CODECS

MEMORY = Path("/dev/shm")
CHOICES = {"all": tuple(CODECS), "without contextual": tuple(name for name in CODECS if name != "contextual")}
_BLOCK_BYTES = 8 << 20


@contextmanager
def prepare(*, work: Path, shared: Path, pair: str, size_mib: int) -> Iterator[Call]:
    """The two checkpoints of a pair of random weights, and the deltas between them: the smallest, the quickest."""

    def write() -> None:
        make(sources(is_quick=True, synthetic_mib=size_mib), shared, names=[pair])
        for half in HALVES:
            (shared / pair / half).rename(shared / half)
        for name, codecs in CHOICES.items():
            ckpt.diff(shared / "base", shared / "target", shared / name, codecs=codecs)

    yield Call(run=write)


@contextmanager
def diff(*, work: Path, shared: Path, choice: str = "all") -> Iterator[Call]:
    """From folder to folder; every chunk that is read is checked first, and the delta is synced."""
    yield _timed(lambda: ckpt.diff(shared / "base", shared / "target", work / "delta", codecs=CHOICES[choice]), shared)


@contextmanager
def compare(*, work: Path, shared: Path) -> Iterator[Call]:
    """Both halves are read and their elements compared by NumPy; nothing is verified, nothing written."""

    def run() -> int:
        both = changes(shared / "base", shared / "target", verify="none")
        return sum(int(np.count_nonzero(change.base != change.target)) for change in both)

    yield _timed(run, shared)


@contextmanager
def hash_both(*, work: Path, shared: Path) -> Iterator[Call]:
    """SHA-256 of the weights files of both halves by hashlib: what checking them costs at least."""
    files = [file for half in HALVES for file in (shared / half).glob("weights-*.safetensors")]

    def run() -> None:
        for file in files:
            with open(file, "rb") as opened:
                hashlib.sha256(mmap(opened.fileno(), 0, prot=PROT_READ))

    yield _timed(run, shared)


@contextmanager
def apply(*, work: Path, shared: Path, in_memory: bool, choice: str = "all") -> Iterator[Call]:
    """The target's folder, every chunk of it proved by SHA-256; synced, which costs nothing in memory."""
    with TemporaryDirectory(dir=MEMORY if in_memory else work) as place:
        yield _timed(lambda: ckpt.apply(shared / "base", shared / choice, Path(place) / "made"), shared)


@contextmanager
def write_raw(*, work: Path, shared: Path) -> Iterator[Call]:
    """The target's weights files into others of a new folder; files and folder synced, nothing computed."""

    def run() -> None:
        for source in (shared / "target").glob("weights-*.safetensors"):
            with open(source, "rb") as read, open(work / source.name, "wb") as written:
                view = memoryview(mmap(read.fileno(), 0, prot=PROT_READ))
                for start in range(0, len(view), _BLOCK_BYTES):
                    written.write(view[start : start + _BLOCK_BYTES])
                written.flush()
                os.fsync(written.fileno())
        folder = os.open(work, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    yield _timed(run, shared)


def _timed(run: Callable[[], object], shared: Path) -> Call:
    """Figures: bytes of the target by second, and by second of the processor, all threads together."""
    spent: list[tuple[float, float]] = []

    def timed() -> None:
        started_s, processor_s = time.perf_counter(), time.process_time()
        run()
        spent.append((time.perf_counter() - started_s, time.process_time() - processor_s))

    def figures() -> Figures:
        size_gb = ckpt.read_manifest(shared / "target").payload_bytes / 1e9
        ((wall_s, processor_s),) = spent
        return {"gb_per_s": size_gb / wall_s, "gb_per_processor_s": size_gb / processor_s}

    return Call(run=timed, figures=figures)
