"""How a kernel is launched: configurations in words, the table of those that measured best, and what a device can hold.

A configuration is a few numbers, written ``rows=4 warps=8 programs=0 stages=1``. A program may carry one in each call
of a fused operator (its argument ``config``); an empty one is looked up in the table, by the device's name. Nothing
searches while it serves: the table is written by hand from what ``python -m benchmarks.tune_kernels`` prints.
"""

from collections.abc import Sequence
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
        stages: Blocks of rows in flight in each of them; 1: the one that is computed.
    """

    rows: int = _one_of(1, 2, 4, 8, 16, 32, 64)
    warps: int = _one_of(1, 2, 4, 8, 16, 32)
    programs: int = _one_of(0, 1, 2, 4, 8, 16, 32)
    stages: int = _one_of(1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig(Config):
    """For products of matrices.

    Attributes:
        m, n, k: A tile of the result and a step along the sum.
        group: Tiles along M that are gone through before the next along N, for the cache.
        warps: Of 32 threads, that compute a tile.
        stages: Tiles of operands in flight.
        programs: Blocks of threads for each multiprocessor, that go through the tiles together, fed by the copy engine
            where it can read the operands; 0: one a tile.
    """

    m: int = _one_of(16, 32, 64, 128, 256)
    n: int = _one_of(16, 32, 64, 128, 256)
    k: int = _one_of(16, 32, 64, 128)
    group: int = _one_of(1, 2, 4, 8, 16)
    warps: int = _one_of(1, 2, 4, 8, 16)
    stages: int = _one_of(1, 2, 3, 4, 5, 6)
    programs: int = _one_of(0, 1, 2)

    def fits(self, device: torch.device, *, element_bytes: int) -> bool:
        """Whether sums fit into registers and operands, and a tile on its way out, into shared memory."""
        operands, result = self.stages * (self.m + self.n) * self.k, self.m * self.n
        both = operands + result // (1 + self.is_stored_in_halves(device, element_bytes=element_bytes))
        shared_bytes = (both * self.programs if self.programs else max(operands, result)) * element_bytes
        registers = self.m * self.n // (32 * self.warps)
        return registers <= _MOST_REGISTERS // 2 + 1 and shared_bytes <= budget(device).shared_bytes

    def is_stored_in_halves(self, device: torch.device, *, element_bytes: int) -> bool:
        """Whether a tile leaves in two parts, since there is no room for all of it beside operands in flight."""
        elements = self.stages * (self.m + self.n) * self.k + self.m * self.n
        return self.programs > 0 and elements * element_bytes * self.programs > budget(device).shared_bytes


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


def _rows(
    operator: str, columns: int, evidence: str, *, rows: int, warps: int, programs: int = 0, stages: int = 1
) -> Measured:
    config = RowConfig(rows=rows, warps=warps, programs=programs, stages=stages)
    return Measured(device=_H200, operator=operator, bits=16, size=columns, config=config, evidence=evidence)


def _tiles(size: int, evidence: str, *, m: int, n: int, group: int, warps: int, stages: int, programs: int) -> Measured:
    config = TileConfig(m=m, n=n, k=64, group=group, warps=warps, stages=stages, programs=programs)
    return Measured(device=_H200, operator="linear_act", bits=16, size=size, config=config, evidence=evidence)


_H200: Final = "NVIDIA H200"
_NORM, _SUM = "layernorm_act", "add_layernorm"
# Rows: 2²⁶ elements, gelu; a copy moves 4.0 to 4.1 TB/s. Products: gelu; beside each what cuBLAS takes without it.
# All on 2026-12-01, bfloat16, a graph of calls replayed (Triton 3.6, torch 2.11, CUDA 13.0).
TABLE: Final[tuple[Measured, ...]] = (
    _rows(_NORM, 512, "174752 × 384: 91.5 µs, 2.93 TB/s", rows=4, warps=2),
    _rows(_NORM, 1024, "65536 × 1024: 72.1 µs, 3.72 TB/s", rows=2, warps=1, programs=8, stages=4),
    _rows(_NORM, 2048, "32768 × 2048: 72.8 µs, 3.69 TB/s", rows=1, warps=1, programs=8, stages=3),
    _rows(_NORM, 4096, "16384 × 4096: 76.7 µs, 3.50 TB/s", rows=1, warps=4, programs=4, stages=3),
    _rows(_NORM, 8192, "8192 × 8192: 78.8 µs, 3.41 TB/s", rows=1, warps=8, programs=2, stages=3),
    _rows(_SUM, 512, "174752 × 384: 96.8 µs, 4.16 TB/s", rows=4, warps=2),
    _rows(_SUM, 1024, "65536 × 1024: 95.5 µs, 4.21 TB/s", rows=2, warps=2),
    _rows(_SUM, 2048, "32768 × 2048: 95.3 µs, 4.23 TB/s", rows=1, warps=4),
    _rows(_SUM, 4096, "16384 × 4096: 96.4 µs, 4.18 TB/s", rows=1, warps=8),
    _rows(_SUM, 8192, "8192 × 8192: 100.9 µs, 3.99 TB/s", rows=1, warps=8),
    _rows("rmsnorm", 1024, "65536 × 1024: 65.3 µs, 4.11 TB/s", rows=1, warps=2),
    _rows("rmsnorm", 4096, "16384 × 4096: 68.3 µs, 3.93 TB/s", rows=1, warps=4),
    _rows("softmax", 1024, "65536 × 1024, no mask: 66.8 µs, 4.02 TB/s", rows=2, warps=2),
    _rows("softmax", 4096, "16384 × 4096, no mask: 68.0 µs, 3.95 TB/s", rows=1, warps=8),
    _tiles(384, "128 × 1536 × 384: 3.9 µs (3.8)", m=64, n=32, group=8, warps=4, stages=4, programs=0),
    _tiles(1536, "4096 × 1536 × 384: 17.0 µs (11.7)", m=64, n=128, group=8, warps=4, stages=4, programs=2),
    _tiles(3072, "2048³, silu: 28.3 µs, 607 TFLOP/s (26.7)", m=128, n=128, group=8, warps=4, stages=3, programs=2),
    _tiles(4096, "4096³: 187.6 µs, 733 TFLOP/s (182.5)", m=128, n=256, group=16, warps=8, stages=4, programs=1),
    _tiles(8192, "8192³: 1628 µs, 676 TFLOP/s (1608)", m=128, n=128, group=8, warps=4, stages=3, programs=2),
)

# Greatest first, for devices that nothing was measured on; the last fits everywhere.
_TILES: Final = (
    TileConfig(m=128, n=128, k=64, group=8, warps=8, stages=4, programs=0),
    TileConfig(m=64, n=64, k=64, group=8, warps=4, stages=4, programs=0),
    TileConfig(m=64, n=64, k=32, group=8, warps=4, stages=2, programs=0),
    TileConfig(m=32, n=32, k=32, group=8, warps=4, stages=2, programs=0),
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
    """For rows so long; longer ones than were measured need other numbers of threads."""
    for row in _measured(operator, dtype, device):
        if columns <= row.size and isinstance(row.config, RowConfig):
            return row.config
    held = 1 << (columns - 1).bit_length()
    rows = max(1, min(16, 1024 // held))
    # 16 elements for each thread; more than 16 warps leave a thread 64 registers, which long rows spill.
    warps = max(4, min(16, rows * held // 512), held // 1024)
    return RowConfig(rows=rows, warps=min(32, warps), programs=0, stages=1)


@lru_cache(maxsize=4096)
def tile_config(operator: str, size: int, dtype: torch.dtype, device: torch.device) -> TileConfig:
    """For a product whose shorter side is so long; what serves the greatest measured one serves greater ones."""
    measured = _measured(operator, dtype, device)
    for row in [row for row in measured if size <= row.size] or measured[-1:]:
        if isinstance(row.config, TileConfig):
            return row.config
    fitting = [tile for tile in _TILES if tile.fits(device, element_bytes=dtype.itemsize) and tile.m * 8 <= size]
    return fitting[0] if fitting else _TILES[-1]


def _measured(operator: str, dtype: torch.dtype, device: torch.device) -> list[Measured]:
    """What the table has for an operator, the narrowest row first."""
    asked = (budget(device).name, operator, dtype.itemsize * 8)
    return sorted((row for row in TABLE if (row.device, row.operator, row.bits) == asked), key=lambda row: row.size)
