"""The rules of a nested state: its nodes form exactly one value, and each holds only its own fields, in one form.

Without the second, bytes could hide in fields that no digest covers, and one state could have many encodings.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ckpt.errors import FormatError
from ckpt.format.dtypes import BY_NAME
from ckpt.format.state import (
    KEYS,
    MAPPINGS,
    MAX_DEPTH,
    NUMPY_DTYPES,
    SEQUENCES,
    TENSORS,
    Kind,
    Node,
    decode_scalar,
    encode_scalar,
)

MAX_ALIKE = 64  # numbers of one hash among the keys of a mapping: a search meets all of them
_HASH_MODULUS = 2**61 - 1  # Python's hash of a number is the rest, so a file could hold a million of one hash
_FIXED_BYTES = {Kind.NONE: 0, Kind.BOOL: 1, Kind.FLOAT: 8, Kind.COMPLEX: 16}
_DEVICE = re.compile(r"[a-z][a-z0-9_]{0,31}(:(0|[1-9][0-9]{0,2}))?")
_COUNTED = frozenset(SEQUENCES) | frozenset(MAPPINGS)
_WITH_GRADIENT = frozenset({Kind.TENSOR, Kind.PARAMETER})
_WITHOUT_DATA = _COUNTED | _WITH_GRADIENT
_NAMED = TENSORS | {Kind.NUMPY_SCALAR}
# What a node of each kind may use: count, data, name, requires_grad.
_MAY_USE = {
    kind: (kind in _COUNTED, kind not in _WITHOUT_DATA, kind in _NAMED, kind in _WITH_GRADIENT) for kind in Kind
}


def check_state(nodes: Sequence[Node]) -> None:
    """Every rule of a state.

    Raises:
        FormatError: the nodes do not form exactly one state, or one of them is malformed.
    """
    if _check(nodes, 0, 0) != len(nodes):
        raise FormatError("manifest.state", "nodes after the end of the state", "exactly one state")


def _check(nodes: Sequence[Node], place: int, depth: int) -> int:
    """Check the value that begins at ``place``; return where the next one does."""
    if place >= len(nodes) or depth > MAX_DEPTH:
        raise FormatError("manifest.state", "an unfinished or too deep state", f"one state, {MAX_DEPTH} levels at most")
    node = nodes[place]
    _check_node(node)
    place += 1
    if node.kind in SEQUENCES:
        for _ in range(node.count):
            place = _check(nodes, place, depth + 1)
    elif node.kind in MAPPINGS:
        place = _check_pairs(nodes, place, depth, node.count)
        if node.kind is Kind.ORDERED_DICT:
            place = _check(nodes, place, depth + 1)
    return place


def _check_pairs(nodes: Sequence[Node], place: int, depth: int, count: int) -> int:
    keys: set[object] = set()
    encoded: set[tuple[Kind, bytes]] = set()
    alike: Counter[int] = Counter()
    for number in range(1, count + 1):
        key = nodes[place] if place < len(nodes) else None
        if key is None or key.kind not in KEYS:
            raise FormatError("manifest.state", "a missing key or one that is no scalar", "a scalar key for each value")
        _check_node(key)
        place = _check(nodes, place + 1, depth + 1)
        value = decode_scalar(key)
        if key.kind is Kind.INT:
            alike[value % _HASH_MODULUS] += 1
            if alike[value % _HASH_MODULUS] > MAX_ALIKE:
                raise FormatError("manifest.state", f"more than {MAX_ALIKE} keys that hash alike", "at most as many")
        keys.add(value)
        encoded.add((key.kind, key.data))
        if len(keys) != number or len(encoded) != number:  # 1, 1.0 and True are three encodings, but one key of a dict
            raise FormatError("manifest.state", "a key that stands twice in one mapping", "each key once")
    return place


def _check_node(node: Node) -> None:
    """Every rule that needs the node alone.

    Raises:
        FormatError: it breaks one.
    """
    count, data, name, gradient = _MAY_USE[node.kind]
    unused = (not count and node.count) or (not data and node.data) or (not name and node.name)
    unused = unused or (not gradient and node.requires_grad)
    if unused:
        raise FormatError(_where(node), f"a field that holds {unused!r:.40}", "nothing there")
    if data:
        _check_data(node)


def _where(node: Node) -> str:
    return f"manifest.state ({node.kind.name})"


def _check_data(node: Node) -> None:
    size = _FIXED_BYTES.get(node.kind)
    if size is not None and len(node.data) != size:
        raise FormatError(_where(node), f"{len(node.data)} bytes", f"{size}")
    match node.kind:
        case Kind.BOOL | Kind.INT:
            _expect(encode_scalar(node.kind, decode_scalar(node)) == node.data, node, "the shortest encoding")
        case Kind.STR:
            _text(node)
        case Kind.DTYPE:
            _expect(_text(node) in BY_NAME, node, "a dtype of the table")
        case Kind.DEVICE:
            _expect(_DEVICE.fullmatch(_text(node)) is not None, node, "a device such as 'cpu' or 'cuda:0'")
        case Kind.NDARRAY:
            _expect(_text(node) in NUMPY_DTYPES, node, "a NumPy dtype such as '<f8'")
        case Kind.NUMPY_SCALAR:
            _expect(node.name in NUMPY_DTYPES, node, "a NumPy dtype such as '<f8'")
            _expect(len(node.data) == np.dtype(node.name).itemsize, node, f"the size of {node.name}")
            _expect(node.name != "|b1" or node.data in (b"\0", b"\1"), node, "0 or 1")


def _text(node: Node) -> str:
    try:
        return node.data.decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(_where(node), repr(node.data[:40]), "UTF-8 text") from None


def _expect(condition: bool, node: Node, expected: str) -> None:
    if not condition:
        raise FormatError(_where(node), f"{node.name[:16]} {node.data[:40]!r}".strip(), expected)
