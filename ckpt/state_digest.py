"""The digest of a nested state, taken from its nodes, which are checked on the way.

Each value is hashed with its kind, a container over the digests of its children; the pairs of a mapping are sorted
by their encoded keys, so that the order in which a dict was filled does not change the root.
"""

from collections.abc import Iterator

import torch

from ckpt.digests import Encoder
from ckpt.dtypes import BY_NAME
from ckpt.errors import FormatError
from ckpt.state import KEYS, MAPPINGS, MAX_DEPTH, SEQUENCES, Kind, Node, decode_scalar, encode_scalar


def state_digest(nodes: tuple[Node, ...]) -> bytes:
    """SHA-256 of the canonical encoding: the pairs of a mapping sorted by their encoded keys.

    Raises:
        FormatError: the nodes do not form exactly one state, or one of them is malformed.
    """
    walk = iter(nodes)
    digest = _digest(walk, 0)
    if next(walk, None) is not None:
        raise FormatError("manifest.state", "nodes after the end of the state", "exactly one state")
    return digest


def _digest(nodes: Iterator[Node], depth: int) -> bytes:
    node = next(nodes, None)
    if node is None or depth > MAX_DEPTH + 1:
        raise FormatError("manifest.state", "an unfinished or too deep state", f"one state, {MAX_DEPTH} levels at most")
    encoder = Encoder("treering/state/v1").integer(int(node.kind))
    if node.kind in SEQUENCES:
        encoder.integer(node.count)
        for _ in range(node.count):
            encoder.raw(_digest(nodes, depth + 1))
    elif node.kind in MAPPINGS:
        _digest_pairs(node, nodes, depth, encoder)
    else:
        _check_leaf(node)
        encoder.string(node.name).binary(node.data).integer(int(node.requires_grad))
    return encoder.digest()


def _digest_pairs(node: Node, nodes: Iterator[Node], depth: int, encoder: Encoder) -> None:
    pairs: dict[bytes, bytes] = {}
    for _ in range(node.count):
        key = next(nodes, None)
        if key is None or key.kind not in KEYS:
            raise FormatError("manifest.state", "a missing key or one that is no scalar", "a scalar key for each value")
        pairs[_digest(iter([key]), depth)] = _digest(nodes, depth + 1)
    if len(pairs) != node.count:
        raise FormatError("manifest.state", "a key that stands twice in one mapping", "each key once")
    encoder.integer(node.count)
    for encoded_key, encoded_value in sorted(pairs.items()):
        encoder.raw(encoded_key).raw(encoded_value)
    if node.kind is Kind.ORDERED_DICT:
        encoder.raw(_digest(nodes, depth + 1))


_FIXED_BYTES = {Kind.NONE: 0, Kind.BOOL: 1, Kind.FLOAT: 8, Kind.COMPLEX: 16}


def _check_leaf(node: Node) -> None:
    where = f"manifest.state ({node.kind.name})"
    size = _FIXED_BYTES.get(node.kind)
    if size is not None and len(node.data) != size:
        raise FormatError(where, f"{len(node.data)} bytes", f"{size}")
    if node.kind in (Kind.BOOL, Kind.INT) and encode_scalar(node.kind, decode_scalar(node)) != node.data:
        raise FormatError(where, repr(node.data[:16]), "the shortest encoding of the value")
    if node.kind is Kind.DTYPE and node.data.decode("utf-8", "replace") not in BY_NAME:
        raise FormatError(where, repr(node.data), "a dtype of the table")
    if node.kind in (Kind.NUMPY_SCALAR, Kind.NDARRAY):
        _check_numpy(node, where)
    if node.kind in (Kind.STR, Kind.DEVICE):
        try:
            text = node.data.decode("utf-8")
            if node.kind is Kind.DEVICE:
                torch.device(text)
        except (UnicodeDecodeError, RuntimeError):
            raise FormatError(where, repr(node.data[:64]), "UTF-8 text, of a device a known one") from None


def _check_numpy(node: Node, where: str) -> None:
    name = node.name if node.kind is Kind.NUMPY_SCALAR else node.data.decode("utf-8", "replace")
    if name[:1] not in "<|" or name[1:2] not in tuple("biufc") or not name[2:].isdecimal() or len(name) > 5:
        raise FormatError(where, repr(name[:16]), "a NumPy dtype such as '<f8'")
    if node.kind is Kind.NUMPY_SCALAR and len(node.data) != int(name[2:]):
        raise FormatError(where, f"{len(node.data)} bytes", name[2:])
