"""Saving and loading a state: ours, which hashes and syncs, against torch and safetensors with and without a sync."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

import ckpt
from benchmarks.cases.weights import mixed_state
from benchmarks.plan import Call

OURS, PICKLED, PLAIN = "checkpoint", "state.pt", "state.safetensors"
PAGE_BYTES = 4096


@contextmanager
def prepare(*, work: Path, shared: Path, size_bytes: int) -> Iterator[Call]:
    """One state in all three forms."""
    state = mixed_state(size_bytes)

    def save() -> None:
        ckpt.save(state, shared / OURS)
        torch.save(state, shared / PICKLED)
        safetensors.torch.save_file(state, shared / PLAIN)

    yield Call(run=save)


@contextmanager
def save_treering(*, work: Path, shared: Path, size_bytes: int) -> Iterator[Call]:
    """SHA-256 and CRC-32 of every chunk, files and folder synced, renamed into place."""
    state = mixed_state(size_bytes)
    yield Call(run=lambda: ckpt.save(state, work / OURS))


@contextmanager
def save_torch(*, work: Path, shared: Path, size_bytes: int, sync: bool) -> Iterator[Call]:
    """A zip archive with a pickle."""
    state = mixed_state(size_bytes)
    yield _saving(lambda path: torch.save(state, path), work / PICKLED, sync=sync)


@contextmanager
def save_safetensors(*, work: Path, shared: Path, size_bytes: int, sync: bool) -> Iterator[Call]:
    """One file, no checksums."""
    state = mixed_state(size_bytes)
    yield _saving(lambda path: safetensors.torch.save_file(state, path), work / PLAIN, sync=sync)


@contextmanager
def load_treering(*, work: Path, shared: Path, verify: Literal["none", "crc32", "lazy", "sha256"]) -> Iterator[Call]:
    """Mapped, and verified as told."""
    yield Call(run=lambda: _touch(ckpt.load(shared / OURS, verify=verify)))


@contextmanager
def load_torch(*, work: Path, shared: Path, mmap: bool) -> Iterator[Call]:
    """The restricted unpickler; nothing is verified."""
    yield Call(run=lambda: _touch(torch.load(shared / PICKLED, weights_only=True, mmap=mmap)))


@contextmanager
def load_safetensors(*, work: Path, shared: Path) -> Iterator[Call]:
    """Mapped; nothing is verified."""
    yield Call(run=lambda: _touch(safetensors.torch.load_file(shared / PLAIN)))


def _saving(save: Callable[[Path], object], path: Path, *, sync: bool) -> Call:
    def run() -> None:
        save(path)
        if sync:
            with open(path, "rb") as file:
                os.fsync(file.fileno())

    return Call(run=run)


def _touch(state: Any) -> int:
    """Read a byte of every page, so that a mapped load does its work too."""
    tensors: dict[str, Tensor] = state
    return sum(int(tensor.view(torch.uint8)[::PAGE_BYTES].sum()) for tensor in tensors.values())
