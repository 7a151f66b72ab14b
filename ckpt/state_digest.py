"""The digest of a nested state, taken from its nodes, which are checked on the way.

Each value is hashed with its kind, a container over the digests of its children; the pairs of a mapping are sorted
by their encoded keys, so that the order in which a dict was filled does not change the root.
"""

from collections.abc import Iterator

from ckpt.digests import Encoder
from ckpt.errors import FormatError
from ckpt.node_rules import check_node
from ckpt.state import KEYS, MAPPINGS, MAX_DEPTH, SEQUENCES, Kind, Node, decode_scalar


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
    check_node(node)
    encoder = Encoder("treering/state/v1").integer(int(node.kind))
    if node.kind in SEQUENCES:
        encoder.integer(node.count)
        for _ in range(node.count):
            encoder.raw(_digest(nodes, depth + 1))
    elif node.kind in MAPPINGS:
        _digest_pairs(node, nodes, depth, encoder)
    else:
        encoder.string(node.name).binary(node.data).integer(int(node.requires_grad))
    return encoder.digest()


def _digest_pairs(node: Node, nodes: Iterator[Node], depth: int, encoder: Encoder) -> None:
    pairs: dict[bytes, bytes] = {}
    keys: set[object] = set()
    for _ in range(node.count):
        key = next(nodes, None)
        if key is None or key.kind not in KEYS:
            raise FormatError("manifest.state", "a missing key or one that is no scalar", "a scalar key for each value")
        pairs[_digest(iter([key]), depth)] = _digest(nodes, depth + 1)
        keys.add(decode_scalar(key))
    if min(len(pairs), len(keys)) != node.count:  # 1, 1.0 and True are three encodings, but one key of a dict
        raise FormatError("manifest.state", "a key that stands twice in one mapping", "each key once")
    encoder.integer(node.count)
    for encoded_key, encoded_value in sorted(pairs.items()):
        encoder.raw(encoded_key).raw(encoded_value)
    if node.kind is Kind.ORDERED_DICT:
        encoder.raw(_digest(nodes, depth + 1))
