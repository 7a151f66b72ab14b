"""How a kernel is launched: configurations in words, the table of those that measured best, and what a device can hold.

A configuration is a few numbers, written ``rows=4 warps=8 programs=0``. A program carries one in each call of a fused
operator (its argument ``config``); an empty one is looked up in the table, by the device's name. Nothing searches while
it serves: the table is written by hand from what ``python -m benchmarks.tune_kernels`` prints, measurement included.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, Self, cast

import torch

from compiler.kernels.errors import BudgetError, ChoiceError

_MOST_REGISTERS: Final = 255  # of 32 bits for one thread: CUDA C++ Programming Guide, compute capability 9.0


def _one_of(*numbers: int) -> int:
    """A field of a configuration, and the numbers that it may have."""
    return cast(int, field(metadata={"numbers": numbers}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Numbers by name."""

    def __str__(self) -> str:
        return " ".join(f"{one.name}={getattr(self, one.name)}" for one in fields(self))

    @classmethod
    def parse(cls, operator: str, text: str) -> Self:
        """The configuration whose ``str`` this is.

        Raises:
            ChoiceError: A word is missing, unknown or twice there, or its number is none of the possible ones.
        """
        words = [word.partition("=")[::2] for word in text.split()]
        known = {one.name: {str(number): number for number in one.metadata["numbers"]} for one in fields(cls)}
        if sorted(name for name, _ in words) != sorted(known) or any(value not in known[name] for name, value in words):
            expected = [f"{name}={'|'.join(numbers)}" for name, numbers in known.items()]
            raise ChoiceError(operator=operator, choice="config", found=text, known=expected)
        return cls(**{name: known[name][value] for name, value in words})


@dataclass(frozen=True, slots=True, kw_only=True)
class RowConfig(Config):
    """For operators over rows.

    Attributes:
        rows: Of one block.
        warps: Of 32 threads, that compute a block.
        programs: Blocks of threads for each multiprocessor, that go through the rows together; 0: one a block of rows.
    """

    rows: int = _one_of(1, 2, 4, 8, 16, 32, 64)
    warps: int = _one_of(1, 2, 4, 8, 16, 32)
    programs: int = _one_of(0, 1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig(Config):
    """For products of matrices.

    Attributes:
        m, n, k: A tile of the result and a step along the sum.
        group: Tiles along M that are gone through before the next along N, for the cache.
        warps: Of 32 threads, that compute a tile.
        stages: Tiles of operands in flight.
    """

    m: int = _one_of(16, 32, 64, 128, 256)
    n: int = _one_of(16, 32, 64, 128, 256)
    k: int = _one_of(16, 32, 64, 128)
    group: int = _one_of(1, 2, 4, 8, 16)
    warps: int = _one_of(1, 2, 4, 8, 16)
    stages: int = _one_of(1, 2, 3, 4, 5, 6)

    def fits(self, device: torch.device, *, element_bytes: int) -> bool:
        """Whether sums fit into registers and operands, and a tile on its way out, into shared memory."""
        shared_bytes = max(self.stages * (self.m + self.n) * self.k, self.m * self.n) * element_bytes
        registers = self.m * self.n // (32 * self.warps)
        return registers <= _MOST_REGISTERS // 2 + 1 and shared_bytes <= budget(device).shared_bytes


class Budget(NamedTuple):
    """What a device has."""

    name: str
    processors: int
    shared_bytes: int


@cache
def budget(device: torch.device) -> Budget:
    """Read from the device; the interpreter has no bounds."""
    if device.type != "cuda":
        return Budget(name="interpreter", processors=4, shared_bytes=1 << 30)
    properties: Any = torch.cuda.get_device_properties(device)  # the stubs lack a field
    return Budget(
        name=properties.name,
        processors=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of the table: a configuration, what it is for, and what it reached.

    Attributes:
        device: As CUDA names it.
        operator: Its name without the namespace.
        bits: Of an element.
        size: The greatest the row is for: columns, or the shorter side of a product.
        config: The winner.
        evidence: Shape, microseconds, TB/s or TFLOP/s, the day.
    """

    device: str
    operator: str
    bits: int
    size: int
    config: Config
    evidence: str


TABLE: Final[tuple[Measured, ...]] = ()

# Greatest first, for devices that nothing was measured on; the last fits everywhere.
_TILES: Final = (
    TileConfig(m=128, n=128, k=64, group=8, warps=8, stages=4),
    TileConfig(m=64, n=64, k=64, group=8, warps=4, stages=4),
    TileConfig(m=64, n=64, k=32, group=8, warps=4, stages=2),
    TileConfig(m=32, n=32, k=32, group=8, warps=4, stages=2),
)


def config_for(operator: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Config:
    """The configuration of a call: the table's, or where it does not know the device one that the device can hold.

    Args:
        operator: Its name without the namespace.
        shape: (M, N, K) of ``linear_act``, (…, columns) of the others.
        dtype, device: Of the operands.
    """
    if operator == "linear_act":
        return tile_config(operator, min(shape[:2]), dtype, device)
    return row_config(operator, shape[-1], dtype, device)


def given_tile(text: str, dtype: torch.dtype, device: torch.device) -> TileConfig:
    """The configuration that a call of ``linear_act`` carries.

    Raises:
        ChoiceError: The text is none.
        BudgetError: The device cannot hold it.
    """
    tile = TileConfig.parse("linear_act", text)
    if not tile.fits(device, element_bytes=dtype.itemsize):
        name, _, shared_bytes = budget(device)
        raise BudgetError(operator="linear_act", config=text, device=name, shared_bytes=shared_bytes)
    return tile


@lru_cache(maxsize=4096)
def row_config(operator: str, columns: int, dtype: torch.dtype, device: torch.device) -> RowConfig:
    """For rows so long."""
    for found in _measured(operator, columns, dtype, device):
        if isinstance(found, RowConfig):
            return found
    held = 1 << (columns - 1).bit_length()
    rows = max(1, min(16, 1024 // held))
    # 16 elements for each thread; more than 16 warps leave a thread 64 registers, which long rows spill.
    warps = max(4, min(16, rows * held // 512), held // 1024)
    return RowConfig(rows=rows, warps=min(32, warps), programs=0)


@lru_cache(maxsize=4096)
def tile_config(operator: str, size: int, dtype: torch.dtype, device: torch.device) -> TileConfig:
    """For a product whose shorter side is so long."""
    for found in _measured(operator, size, dtype, device):
        if isinstance(found, TileConfig):
            return found
    fitting = [tile for tile in _TILES if tile.fits(device, element_bytes=dtype.itemsize) and tile.m * 8 <= size]
    return fitting[0] if fitting else _TILES[-1]


def _measured(operator: str, size: int, dtype: torch.dtype, device: torch.device) -> Iterator[Config]:
    """What the table has for a call, the narrowest row first; the row of the greatest size serves what is greater."""
    rows = [
        row
        for row in TABLE
        if (row.device, row.operator, row.bits) == (budget(device).name, operator, dtype.itemsize * 8)
    ]
    rows.sort(key=lambda row: row.size)
    return (row.config for row in [row for row in rows if row.size >= size] or rows[-1:])
