"""The state: a flat list of nodes made into Python values, and its digest.

What Python has no plain value for is one of the small classes below. Mappings stay dict, OrderedDict (with its
``_metadata``) and Counter, in the order of the file.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treering_reader import digests
from treering_reader.dtypes import NUMPY, SIZES, has_gradient
from treering_reader.faults import FaultError, demand
from treering_reader.schema import Node, Tensor

NONE, BOOL, INT, FLOAT, COMPLEX, STR, BYTES, DTYPE, DEVICE, NUMPY_SCALAR = range(1, 11)
LIST, TUPLE, SIZE, DICT, ORDERED_DICT, COUNTER, TENSOR, PARAMETER, NDARRAY = range(11, 20)
KEYS = (NONE, BOOL, INT, FLOAT, STR, BYTES)
LEVELS_AT_MOST = 64
ALIKE_AT_MOST = 64
HASH_MODULUS = (1 << 61) - 1
_DEVICE = re.compile(r"[a-z][a-z0-9_]{0,31}(:(0|[1-9][0-9]{0,2}))?")


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor of the table: ``kind`` is ``tensor``, ``parameter`` or ``ndarray``; the dtype is NumPy's of an array."""

    kind: str
    name: str
    requires_grad: bool = False
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Dtype:
    name: str


@dataclass(frozen=True, slots=True)
class Device:
    text: str


@dataclass(frozen=True, slots=True)
class NumpyScalar:
    dtype: str
    data: bytes


class Size(tuple[int, ...]):
    """A torch.Size."""


@dataclass(frozen=True, slots=True)
class Subtree:
    """A node with all below it."""

    value: Any
    digest: bytes


class State:
    """A walk over the nodes; ``value`` and ``digest`` are those of the whole.

    Raises:
        FaultError: ``state-shape`` where nodes are missing or left over, ``state-kind``, ``state-data``,
            ``state-depth``, ``duplicate-key``, ``keys-alike``, ``tensor-reference`` or ``requires-grad``.
    """

    def __init__(self, nodes: Sequence[Node], tensors: Sequence[Tensor]) -> None:
        self._nodes = iter(nodes)
        self._dtypes = {tensor.name: tensor.dtype for tensor in tensors}
        self._unseen = dict(self._dtypes)
        whole = self._next(level=0)
        demand(next(self._nodes, None) is None, "state-shape", "nodes are left over")
        demand(not self._unseen, "tensor-reference", f"nothing refers to {sorted(self._unseen)[:3]}")
        self.value, self.digest = whole.value, whole.digest

    def _next(self, *, level: int, among: Sequence[int] = range(NONE, NDARRAY + 1)) -> Subtree:
        node = next(self._nodes, None)
        if node is None:
            raise FaultError("state-shape", "a node is missing")
        demand(level <= LEVELS_AT_MOST, "state-depth", f"more than {LEVELS_AT_MOST} levels")
        demand(node.kind in among, "state-kind", f"kind {node.kind}, expected one of {list(among)}")
        _check_empty_fields(node)
        if node.kind in (DICT, ORDERED_DICT, COUNTER):
            return self._mapping(node, level + 1)
        if node.kind in (LIST, TUPLE, SIZE):
            return self._sequence(node, level + 1)
        value = self._reference(node) if node.kind >= TENSOR else _scalar(node)
        return Subtree(value, _scalar_digest(node))

    def _sequence(self, node: Node, level: int) -> Subtree:
        among = (INT,) if node.kind == SIZE else range(NONE, NDARRAY + 1)
        elements = [self._next(level=level, among=among) for _ in range(node.count)]
        values = [element.value for element in elements]
        if node.kind == SIZE:
            fits = all(value.bit_length() < 64 for value in values)
            demand(fits, "state-data", f"a torch.Size of {values[:8]}")
        made = {LIST: list, TUPLE: tuple, SIZE: Size}[node.kind](values)
        return Subtree(made, _inner_digest(node, [element.digest for element in elements]))

    def _mapping(self, node: Node, level: int) -> Subtree:
        pairs = [(self._next(level=level, among=KEYS), self._next(level=level)) for _ in range(node.count)]
        made = {DICT: dict, ORDERED_DICT: OrderedDict, COUNTER: Counter}[node.kind]()
        alike = Counter(key.value % HASH_MODULUS for key, _ in pairs if type(key.value) is int)
        demand(
            max(alike.values(), default=0) <= ALIKE_AT_MOST, "keys-alike", "too many int keys that Python hashes alike"
        )
        for key, value in pairs:
            demand(key.value not in made, "duplicate-key", f"the key {key.value!r} stands twice in one mapping")
            made[key.value] = value.value
        encoded = {key.digest for key, _ in pairs}  # a NaN is equal to no key, not even to itself
        demand(len(encoded) == len(pairs), "duplicate-key", "one NaN stands twice in one mapping")
        fields = [part.digest for pair in sorted(pairs, key=lambda pair: pair[0].digest) for part in pair]
        if node.kind == ORDERED_DICT:
            metadata = self._next(level=level)
            fields.append(metadata.digest)
            made._metadata = metadata.value
        return Subtree(made, _inner_digest(node, fields))

    def _reference(self, node: Node) -> Reference:
        dtype = self._unseen.pop(node.name, None)
        if dtype is None:
            raise FaultError("tensor-reference", f"{node.name[:80]!r} is no tensor of the table, or referred to before")
        if node.kind == NDARRAY:
            name = _text(node)
            demand(NUMPY.get(name) == dtype, "state-data", f"an array of {name!r} whose tensor is {dtype}")
            return Reference("ndarray", node.name, dtype=name)
        allowed = not node.requires_grad or has_gradient(dtype)
        demand(allowed, "requires-grad", f"{node.name[:80]!r} of {dtype} has a gradient")
        return Reference("tensor" if node.kind == TENSOR else "parameter", node.name, node.requires_grad)


def _scalar_digest(node: Node) -> bytes:
    fields = [digests.integer(node.kind), digests.text(node.name), digests.data(node.data)]
    return digests.h("treering/state/v1", *fields, digests.integer(node.requires_grad))


def _inner_digest(node: Node, below: Sequence[bytes]) -> bytes:
    return digests.h("treering/state/v1", digests.integer(node.kind), digests.integer(node.count), *below)


def _check_empty_fields(node: Node) -> None:
    """A field that the table does not give to a kind is empty."""
    has_data = BOOL <= node.kind <= NUMPY_SCALAR or node.kind == NDARRAY
    stray = [
        name
        for name, given in (
            ("count", LIST <= node.kind <= COUNTER),
            ("data", has_data),
            ("name", node.kind == NUMPY_SCALAR or node.kind >= TENSOR),
            ("requires_grad", node.kind in (TENSOR, PARAMETER)),
        )
        if getattr(node, name) and not given
    ]
    demand(not stray, "state-data", f"a node of kind {node.kind} has {stray}")


def _scalar(node: Node) -> Any:
    if node.kind == NUMPY_SCALAR:
        return _numpy_scalar(node)
    if node.kind == INT:
        return _int(node.data)
    if node.kind in (FLOAT, COMPLEX):
        demand(len(node.data) == 8 * (node.kind - FLOAT + 1), "state-data", f"a float of {len(node.data)} bytes")
        parts = struct.unpack(f"<{len(node.data) // 8}d", node.data)
        return parts[0] if node.kind == FLOAT else complex(*parts)
    if node.kind == NONE:
        return None
    if node.kind == BOOL:
        demand(node.data in (b"\0", b"\1"), "state-data", f"a bool of {node.data[:8]!r}")
        return node.data == b"\1"
    if node.kind == BYTES:
        return node.data
    return _named(node)


def _named(node: Node) -> str | Dtype | Device:
    text = _text(node)
    if node.kind == DTYPE:
        demand(text in SIZES, "unknown-dtype", f"the dtype {text[:80]!r} in the state")
        return Dtype(text)
    if node.kind == DEVICE:
        demand(_DEVICE.fullmatch(text) is not None, "state-data", f"the device {text[:80]!r}")
        return Device(text)
    return text


def _int(data: bytes) -> int:
    value = int.from_bytes(data, "little", signed=True)
    demand(len(data) == value.bit_length() // 8 + 1, "state-data", f"an int in {len(data)} bytes")
    return value


def _numpy_scalar(node: Node) -> NumpyScalar:
    dtype = NUMPY.get(node.name)
    if dtype is None:
        raise FaultError("state-data", f"a NumPy scalar of dtype {node.name[:80]!r}")
    right = len(node.data) == SIZES[dtype] and (dtype != "bool" or node.data in (b"\0", b"\1"))
    demand(right, "state-data", f"a NumPy scalar of dtype {node.name} of the bytes {node.data[:16]!r}")
    return NumpyScalar(node.name, node.data)


def _text(node: Node) -> str:
    try:
        return node.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FaultError("state-data", f"text that is not UTF-8: {error}") from None
