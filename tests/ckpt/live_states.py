"""States for tests of live memory: deltas between some, tensors that view the memory of their own, and its bytes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

import ckpt
from tests.ckpt.chains import SIGNER

State = dict[str, torch.Tensor]


def deltas_of(folder: Path, *states: Mapping[str, object], sign: bool = False) -> list[Path]:
    """Checkpoints ``0``, ``1``, … of some states, and the deltas between them, which are given."""
    for number, state in enumerate(states):
        ckpt.save(state, folder / f"{number}")
    paths = [folder / f"delta-{number}" for number in range(1, len(states))]
    for number, path in enumerate(paths):
        ckpt.diff(folder / f"{number}", folder / f"{number + 1}", path, sign=SIGNER if sign else None)
    return paths


def manifest(folder: Path, number: int) -> ckpt.Manifest:
    return ckpt.read_manifest(folder / f"{number}")


def bytes_of(tensor: torch.Tensor) -> bytes:
    """All of the storage that a tensor views."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().tobytes()  # type: ignore[call-overload, no-any-return]


def memories(state: Mapping[str, torch.Tensor]) -> dict[int, bytes]:
    """All bytes of all storages, gaps included, by address."""
    return {tensor.untyped_storage().data_ptr(): bytes_of(tensor) for tensor in state.values()}


def with_bytes(state: Mapping[str, torch.Tensor], change: Callable[[bytes], bytes]) -> State:
    """Tensors laid out and tied as these, over storages of other bytes."""
    storages: dict[int, torch.UntypedStorage] = {}
    made = {}
    for name, tensor in state.items():
        old = tensor.untyped_storage()
        key = old.data_ptr() or id(tensor)
        if key not in storages:
            data = bytearray(change(bytes_of(tensor)))
            flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            storages[key] = flat.untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype)
        made[name] = empty.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]
    return made


def copy_of(state: Mapping[str, torch.Tensor]) -> State:
    return with_bytes(state, lambda data: data)


@contextmanager
def untouched(state: Mapping[str, torch.Tensor]) -> Iterator[None]:
    before = memories(state)
    yield
    assert memories(state) == before


def several() -> tuple[State, State]:
    """Tensors of several chunks: few elements changed, all, rows that moved, tied, permuted, with gaps, in turn."""
    torch.manual_seed(0)
    whole = torch.randn(300_000)
    old = {
        "sparse": torch.randn(3_000_000).bfloat16(),
        "dense": torch.randn(400_000),
        "rows": torch.randn(20_000, 32),
        "tied": whole,
        "also": whole,
        "part": whole[1000:2000],
        "permuted": torch.randn(16, 8, 64, 64).to(memory_format=torch.channels_last),
        "gaps": torch.randn(900_000)[::3],
        "one": torch.randn(600_000),
        "two": torch.randn(600_000),
        "same": torch.randn(10),
        "complex": torch.randn(5000, dtype=torch.complex128),
    }
    new = copy_of(old)
    new["sparse"].view(torch.int16)[::97] += 1
    new["dense"].mul_(1.5)
    new["rows"].copy_(torch.cat([old["rows"][7000:], old["rows"][:7000]]))
    new["tied"][5] = 7
    new["permuted"][3, 2, ::7] += 1
    new["gaps"][::1000] = -1
    new["one"].copy_(old["two"])
    new["two"].copy_(old["one"])
    new["two"][3] = 4
    new["complex"].imag[::9] += 1
    return old, new


def several_on_disk(folder: Path) -> Path:
    """Checkpoints ``0`` and ``1`` of :func:`several`, ``2`` after them, and the signed ``delta-1`` and ``delta-2``."""
    old, new = several()
    last = copy_of(new)
    last["dense"][7] = 1
    deltas_of(folder, old, new, last, sign=True)
    return folder


def live_at(folder: Path, number: int) -> State:
    return copy_of(ckpt.load(folder / f"{number}"))
