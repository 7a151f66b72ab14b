"""Saving, loading and verifying a state: ours beside torch, safetensors, DCP, tensorizer, and the bare file system.

Every case takes ``size_bytes`` and ``tensor_bytes`` where it makes a state, and reads the stage's files where it does
not: ``checkpoint`` (ours), ``state.pt``, ``state.safetensors``, ``dcp``, ``state.tensors``.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from mmap import mmap
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import ckpt
from benchmarks.cases.weights import TENSOR_BYTES, mixed_state
from benchmarks.plan import Call

OURS, PICKLED, PLAIN, DCP, TENSORIZED = "checkpoint", "state.pt", "state.safetensors", "dcp", "state.tensors"
PAGE_BYTES = 4096
READ_BYTES = 16 << 20
HASHED_BYTES = 1 << 20  # our chunk, so that both sides hash the same runs


@contextmanager
def prepare(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int = TENSOR_BYTES) -> Iterator[Call]:
    """One state in the form of every side that is installed."""
    state = mixed_state(size_bytes, tensor_bytes=tensor_bytes)

    def save() -> None:
        _save_common(state, shared)
        dcp_save(dict(state), checkpoint_id=shared / DCP, no_dist=True)
        if find_spec("tensorizer"):
            _tensorize(state, shared / TENSORIZED)

    yield Call(run=save)


@contextmanager
def prepare_common(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int = TENSOR_BYTES) -> Iterator[Call]:
    """One state in our form and those that take any number of tensors: tensorizer's header does not hold 100,000."""
    state = mixed_state(size_bytes, tensor_bytes=tensor_bytes)
    yield Call(run=lambda: _save_common(state, shared))


def _save_common(state: dict[str, Tensor], shared: Path) -> None:
    ckpt.save(state, shared / OURS)
    torch.save(state, shared / PICKLED)
    safetensors.torch.save_file(state, shared / PLAIN)


@contextmanager
def prepare_ours(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int = TENSOR_BYTES) -> Iterator[Call]:
    """One state in our form alone."""
    state = mixed_state(size_bytes, tensor_bytes=tensor_bytes)
    yield Call(run=lambda: ckpt.save(state, shared / OURS))


# --- saving -----------------------------------------------------------------------------------------------------------


@contextmanager
def save_treering(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int = TENSOR_BYTES) -> Iterator[Call]:
    """SHA-256 and CRC-32 of every chunk, files and folder synced, renamed into place."""
    state = mixed_state(size_bytes, tensor_bytes=tensor_bytes)
    yield Call(run=lambda: ckpt.save(state, work / OURS))


@contextmanager
def save_raw(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int = TENSOR_BYTES) -> Iterator[Call]:
    """The same bytes into one file, tensor by tensor; file and folder synced."""
    views = [_bytes_of(tensor) for tensor in mixed_state(size_bytes, tensor_bytes=tensor_bytes).values()]

    def run() -> None:
        with open(work / "bytes", "wb") as file:
            for view in views:
                file.write(view)
            file.flush()
            os.fsync(file.fileno())
        _sync(work)

    yield Call(run=run)


@contextmanager
def save_torch(
    *, work: Path, shared: Path, size_bytes: int, sync: bool, tensor_bytes: int = TENSOR_BYTES
) -> Iterator[Call]:
    """A zip archive with a pickle."""
    state = mixed_state(size_bytes, tensor_bytes=tensor_bytes)
    yield _saving(lambda path: torch.save(state, path), work / PICKLED, sync=sync)


@contextmanager
def save_safetensors(
    *, work: Path, shared: Path, size_bytes: int, sync: bool, tensor_bytes: int = TENSOR_BYTES
) -> Iterator[Call]:
    """One file, no checksums."""
    state = mixed_state(size_bytes, tensor_bytes=tensor_bytes)
    yield _saving(lambda path: safetensors.torch.save_file(state, path), work / PLAIN, sync=sync)


@contextmanager
def save_dcp(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int = TENSOR_BYTES) -> Iterator[Call]:
    """torch.distributed.checkpoint in one process: files synced, a pickle beside them."""
    state: dict[str, Any] = dict(mixed_state(size_bytes, tensor_bytes=tensor_bytes))
    yield Call(run=lambda: dcp_save(state, checkpoint_id=work / DCP, no_dist=True))


@contextmanager
def save_tensorizer(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int = TENSOR_BYTES) -> Iterator[Call]:
    """One file with CRC-32 and SHA-256 of each tensor; synced."""
    state = mixed_state(size_bytes, tensor_bytes=tensor_bytes)
    yield _saving(lambda path: _tensorize(state, path), work / TENSORIZED, sync=True)


# --- loading ----------------------------------------------------------------------------------------------------------


@contextmanager
def load_treering(
    *, work: Path, shared: Path, verify: Literal["none", "crc32", "lazy", "sha256"], mmap: bool = True
) -> Iterator[Call]:
    """Mapped or read, and verified as told."""
    yield Call(run=lambda: _touch(ckpt.load(shared / OURS, verify=verify, mmap=mmap)))


@contextmanager
def verify_treering(*, work: Path, shared: Path, verify: Literal["crc32", "sha256"]) -> Iterator[Call]:
    """Every byte compared with the manifest, none kept."""
    yield Call(run=lambda: ckpt.verify(shared / OURS, verify=verify).raise_on_fault())


@contextmanager
def read_unverified(*, work: Path, shared: Path) -> Iterator[Call]:
    """The bytes of the weights file into private memory, nothing else."""
    (file,) = (shared / OURS).glob("weights-*.safetensors")

    def run() -> int:
        with open(file, "rb", buffering=0) as opened:
            size = os.fstat(opened.fileno()).st_size
            memory = memoryview(mmap(-1, size))
            done = 0
            while done < size:
                done += opened.readinto(memory[done : done + READ_BYTES]) or 0
        return sum(memory[::PAGE_BYTES])

    yield Call(run=run)


@contextmanager
def hash_alone(*, work: Path, shared: Path, threads: int, of: str = OURS) -> Iterator[Call]:
    """SHA-256 of the weights files in runs of 1 MiB by hashlib; no comparison."""
    files = sorted((shared / of).glob("weights-*.safetensors"))

    def run() -> int:
        parts: list[memoryview] = []
        for file in files:
            with open(file, "rb") as opened:
                view = memoryview(mmap(opened.fileno(), 0, prot=1))
            parts += [view[start : start + HASHED_BYTES] for start in range(0, len(view), HASHED_BYTES)]
        with ThreadPool(threads) as pool:
            return len(pool.map(_sha256, parts))

    yield Call(run=run)


@contextmanager
def load_torch(*, work: Path, shared: Path, mmap: bool) -> Iterator[Call]:
    """The restricted unpickler; nothing is verified."""
    yield Call(run=lambda: _touch(torch.load(shared / PICKLED, weights_only=True, mmap=mmap)))


@contextmanager
def load_safetensors(*, work: Path, shared: Path) -> Iterator[Call]:
    """Mapped; nothing is verified."""
    yield Call(run=lambda: _touch(safetensors.torch.load_file(shared / PLAIN)))


@contextmanager
def load_dcp(*, work: Path, shared: Path, size_bytes: int, tensor_bytes: int = TENSOR_BYTES) -> Iterator[Call]:
    """Into tensors that are there; nothing is verified."""
    state = mixed_state(size_bytes, tensor_bytes=tensor_bytes)
    yield Call(run=lambda: dcp_load(dict(state), checkpoint_id=shared / DCP, no_dist=True))


@contextmanager
def load_tensorizer(*, work: Path, shared: Path, verify: bool) -> Iterator[Call]:
    """Into private memory, each tensor's hashes compared if told."""
    opened_by: Any = import_module("tensorizer").TensorDeserializer

    def run() -> int:
        with opened_by(shared / TENSORIZED, device="cpu", verify_hash=verify) as opened:
            return _touch(dict(opened.items()))

    yield Call(run=run)


# --- parts ------------------------------------------------------------------------------------------------------------


def _saving(save: Callable[[Path], object], path: Path, *, sync: bool) -> Call:
    def run() -> None:
        save(path)
        if sync:
            _sync(path)
            _sync(path.parent)

    return Call(run=run)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _tensorize(state: dict[str, Tensor], path: Path) -> None:
    serializer = import_module("tensorizer").TensorSerializer(path)
    serializer.write_state_dict(state)
    serializer.close()


def _sha256(part: memoryview) -> bytes:
    return sha256(part).digest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data


def _touch(state: Any) -> int:
    """Read a byte of every page, so that a mapped load does its work too."""
    tensors: dict[str, Tensor] = state
    return sum(int(tensor.detach().view(torch.uint8)[::PAGE_BYTES].sum()) for tensor in tensors.values())
