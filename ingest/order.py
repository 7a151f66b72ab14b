"""The order of training rows: a stateless permutation, and a split by content.

A loader that keeps no state can stop anywhere and start again exactly there. So the order of an epoch is a function,
not a list: a Feistel network keyed by (seed, epoch) maps position to row, for any n, with O(1) memory and an O(1) seek
(positions that fall outside n walk the cycle until they are inside). Cutting the data in two uses a keyed hash of each
row's content, so duplicates never straddle the cut and rows keep their side when more data arrives.
"""

import hashlib

import numpy as np
import xxhash
from numpy.typing import NDArray

ROUNDS = 8  # 4 suffice in theory for large domains; small ones (n < 64) mix better with more
_DOMAIN = b"treering/order/v1\0"

Rows = NDArray[np.int64]


def rows_at(start: int, stop: int, *, length: int, seed: int, epoch: int) -> Rows:
    """The rows at positions start..stop-1 of an epoch's order.

    Args:
        start, stop: Positions, 0 <= start <= stop <= length.
        length: Number of rows; every row appears once in an epoch.
        seed, epoch: Name the permutation.

    Returns:
        Row numbers, int64, shape (stop - start,).

    Example:
        >>> sorted(rows_at(0, 5, length=5, seed=7, epoch=0).tolist())
        [0, 1, 2, 3, 4]

    Source:
        Black and Rogaway 2002, "Ciphers with arbitrary finite domains" (cycle walking).
    """
    half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
    keys = _round_keys(seed=seed, epoch=epoch)
    rows = _encrypt(np.arange(start, stop, dtype=np.uint64), half_bits=half_bits, keys=keys)
    outside = np.flatnonzero(rows >= length)
    while outside.size:
        rows[outside] = _encrypt(rows[outside], half_bits=half_bits, keys=keys)
        outside = outside[rows[outside] >= length]
    return rows.astype(np.int64)


def content_fraction(content: bytes, *, seed: int) -> float:
    """A number in [0, 1) that depends only on the bytes and the seed."""
    return xxhash.xxh3_64_intdigest(content, seed=seed) / 2**64


def _round_keys(*, seed: int, epoch: int) -> NDArray[np.uint64]:
    text = f"{seed}/{epoch}".encode()
    return np.frombuffer(hashlib.shake_256(_DOMAIN + text).digest(8 * ROUNDS), dtype="<u8")


def _encrypt(values: NDArray[np.uint64], *, half_bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask = np.uint64((1 << half_bits) - 1)
    left, right = values >> np.uint64(half_bits), values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << np.uint64(half_bits)) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014); arrays wrap modulo 2^64 without a warning."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
