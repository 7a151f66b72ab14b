"""What a program states about its tensors: dynamic dimensions, inputs and outputs, constants.

Plain values, valid once built. Shapes count elements; strides count elements; sizes are in bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from compiler import dtypes
from compiler.errors import DynamicShapeError
from compiler.formula import Formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """A dimension whose size is known only at run time, within [min, max].

    The program is verified at both ends and between them. Two dimensions of one name are always equal.

    Example:
        ``dynamic={"x": {0: Dim(name="batch", max=64)}}``
    """

    name: str
    max: int
    min: int = 1

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise DynamicShapeError(f"dimension name {self.name!r} is not an identifier; call it for example 'batch'.")
        if not 1 <= self.min < self.max:
            raise DynamicShapeError(
                f"dimension {self.name!r} spans {self.min} to {self.max}, expected 1 <= min < max. "
                "Leave a dimension of one size out of dynamic=."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """An input, an output or a checkpoint tensor.

    ``shape`` has None where the size is dynamic; ``dims`` names the dimension there (None for a static size, and
    the empty string for a size computed from dynamic ones).
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    dims: tuple[str | None, ...]

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with each dynamic dimension at its size in ``sizes`` (dimension name → size)."""
        return tuple(
            sizes[dim] if size is None and dim is not None else size or 0
            for size, dim in zip(self.shape, self.dims, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantSpec:
    """A tensor that the program reads and the caller owns: where it lies and how it is computed."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    formula: Formula

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements, without alignment."""
        return prod(self.shape) * dtypes.BY_NAME[self.dtype].itemsize


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor: ``(3, 4, 5)`` → ``(20, 5, 1)``."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the strides are a permutation of row-major ones: every element its own place, no gaps."""
    if len(shape) != len(strides):
        return False
    expected = 1
    for stride, size in sorted(
        ((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1),
    ):
        if stride != expected:
            return False
        expected *= size
    return True
