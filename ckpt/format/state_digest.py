"""The digest of a nested state, taken from its nodes, which have passed :mod:`ckpt.format.state_rules`.

Each value is hashed with its kind, a container over the digests of its children; the pairs of a mapping are sorted
by their encoded keys, so that the order in which a dict was filled does not change the root.
"""

from collections.abc import Iterator

from ckpt.format.digests import Encoder, sha256
from ckpt.format.state import MAPPINGS, SEQUENCES, Kind, Node

_DOMAIN = "treering/state/v1"
_HEADS = {kind: f"{_DOMAIN}\0".encode() + int(kind).to_bytes(8, "little") for kind in Kind}
_FLAGS = {False: bytes(8), True: (1).to_bytes(8, "little")}


def state_digest(nodes: tuple[Node, ...]) -> bytes:
    """SHA-256 of the canonical encoding: the pairs of a mapping sorted by their encoded keys."""
    return _digest(iter(nodes))


def _digest(nodes: Iterator[Node]) -> bytes:
    node = next(nodes)
    if node.kind in SEQUENCES:
        encoder = Encoder(_DOMAIN).integer(int(node.kind)).integer(node.count)
        for _ in range(node.count):
            encoder.raw(_digest(nodes))
        return encoder.digest()
    return _digest_pairs(node, nodes) if node.kind in MAPPINGS else _digest_one(node)


def _digest_one(node: Node) -> bytes:
    """Kind, name, data and gradient, as :class:`Encoder` would encode them: a large state has a million of these."""
    name, data = node.name.encode("utf-8"), node.data
    sizes = (len(name).to_bytes(8, "little"), len(data).to_bytes(8, "little"))
    return sha256(b"".join((_HEADS[node.kind], sizes[0], name, sizes[1], data, _FLAGS[node.requires_grad])))


def _digest_pairs(node: Node, nodes: Iterator[Node]) -> bytes:
    encoder = Encoder(_DOMAIN).integer(int(node.kind)).integer(node.count)
    pairs = sorted((_digest_one(next(nodes)), _digest(nodes)) for _ in range(node.count))
    encoder.raw(b"".join(part for pair in pairs for part in pair))
    if node.kind is Kind.ORDERED_DICT:
        encoder.raw(_digest(nodes))
    return encoder.digest()
