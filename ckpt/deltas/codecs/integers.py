"""Elements as unsigned integers of their width: differences modulo 2ʷ, zigzag, sign and size, byte planes.

Bits are compared and subtracted, never floats: −0.0 and NaN payloads are bits like others.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Unsigned = NDArray[np.unsignedinteger[Any]]

_UNSIGNED: dict[int, np.dtype[np.unsignedinteger[Any]]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
_SIGNED: dict[int, np.dtype[np.signedinteger[Any]]] = {
    1: np.dtype("i1"),
    2: np.dtype("<i2"),
    4: np.dtype("<i4"),
    8: np.dtype("<i8"),
}

WIDTHS = tuple(_UNSIGNED)


def elements(data: memoryview | bytes | bytearray, width: int) -> Unsigned:
    """The bytes as elements, without a copy.

    Raises:
        ValueError: the width is none of 1, 2, 4, 8, or does not divide the length.
    """
    if width not in _UNSIGNED or len(data) % width:
        raise ValueError(f"{len(data)} bytes are no whole elements of {width}")
    return np.frombuffer(data, _UNSIGNED[width])


def add(data: bytearray | memoryview, differences: memoryview, *, width: int) -> None:
    """Add elements to those in ``data``, in place, modulo 2ʷ."""
    sums = elements(data, width)
    sums += elements(differences, width)


def zigzag(differences: Unsigned) -> Unsigned:
    """0, −1, 1, −2, … ↦ 0, 1, 2, 3, …: small differences of either sign become small numbers."""
    width = differences.itemsize
    signed = differences.view(_SIGNED[width])
    return ((signed << 1) ^ (signed >> (8 * width - 1))).view(_UNSIGNED[width])


def unzigzag(values: Unsigned) -> Unsigned:
    """The inverse of :func:`zigzag`."""
    one = values.dtype.type(1)
    return (values >> one) ^ (~(values & one) + one)


def magnitudes(differences: Unsigned) -> tuple[NDArray[np.bool_], Unsigned]:
    """Whether each is below zero as a signed integer, and how far from it."""
    below_zero = differences.view(_SIGNED[differences.itemsize]) < 0
    return below_zero, np.where(below_zero, -differences, differences)


def signed(below_zero: NDArray[np.bool_], sizes: Unsigned) -> Unsigned:
    """The inverse of :func:`magnitudes`."""
    return np.where(below_zero, -sizes, sizes)


def to_planes(values: Unsigned) -> list[bytes]:
    """The lowest bytes of all values, then the next ones, …"""
    grid = values.view(np.uint8).reshape(-1, values.itemsize)
    return [np.ascontiguousarray(grid[:, plane]).tobytes() for plane in range(values.itemsize)]


def from_planes(planes: list[bytes], width: int) -> Unsigned:
    """The inverse of :func:`to_planes`.

    Raises:
        ValueError: the width is none of 1, 2, 4, 8.
    """
    if width not in _UNSIGNED:
        raise ValueError(f"elements of {width} bytes")
    grid = np.empty((len(planes[0]), width), np.uint8)
    for plane, data in enumerate(planes):
        grid[:, plane] = np.frombuffer(data, np.uint8)
    return grid.reshape(-1).view(_UNSIGNED[width])
