"""The nodes of a state as a tree: to unite the states of several processes, to walk one beside a state in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ckpt.errors import UnsupportedStateError
from ckpt.format.state import MAPPINGS, SEQUENCES, TENSORS, Kind, Node, decode_scalar, tensor_name, unflatten


@dataclass(frozen=True, slots=True)
class Tree:
    """A node and what follows it: elements of a sequence; of a mapping its pairs, and an OrderedDict's metadata."""

    node: Node
    items: tuple["Tree", ...] = ()
    pairs: tuple[tuple[Node, "Tree"], ...] = ()
    metadata: "Tree | None" = None

    @property
    def holds_tensors(self) -> bool:
        inner = (*self.items, *(value for _, value in self.pairs))
        return self.node.kind in TENSORS or any(tree.holds_tensors for tree in inner)

    def nodes(self) -> Iterator[Node]:
        """In pre-order, as a manifest holds them."""
        yield self.node
        for item in self.items:
            yield from item.nodes()
        for key, value in self.pairs:
            yield key
            yield from value.nodes()
        if self.metadata is not None:
            yield from self.metadata.nodes()

    def value(self) -> object:
        """What it stands for; of a tree without tensors."""
        return unflatten(tuple(self.nodes()), {})


def tree_of(nodes: Sequence[Node]) -> Tree:
    """The tree of a whole state."""
    return _tree(iter(nodes))


def _tree(nodes: Iterator[Node]) -> Tree:
    node = next(nodes)
    if node.kind in SEQUENCES:
        return Tree(node, items=tuple(_tree(nodes) for _ in range(node.count)))
    if node.kind in MAPPINGS:
        pairs = tuple((next(nodes), _tree(nodes)) for _ in range(node.count))
        return Tree(node, pairs=pairs, metadata=_tree(nodes) if node.kind is Kind.ORDERED_DICT else None)
    return Tree(node)


def united(states: Sequence[tuple[Node, ...]]) -> tuple[Node, ...]:
    """One state of those of several processes, in the order of their ranks.

    Mappings are united key by key. Where several processes have a value, the first one's counts; tensors stand for what
    all of them hold, so they must stand at the same places.

    Raises:
        UnsupportedStateError: a path leads to a tensor, a mapping or a sequence in one process and to something else in
            another, or to sequences with tensors of two lengths.
    """
    if all(state == states[0] for state in states):
        return states[0]
    tree = tree_of(states[0])
    for state in states[1:]:
        tree = _united(tree, tree_of(state), ())
    return tuple(tree.nodes())


def _united(first: Tree, second: Tree, path: tuple[str, ...]) -> Tree:
    kinds = (first.node.kind, second.node.kind)
    if kinds[0] is kinds[1] and kinds[0] in MAPPINGS:
        pairs = {_identity(key): (key, value) for key, value in first.pairs}
        for key, value in second.pairs:
            known = pairs.get(_identity(key))
            inner = (*path, str(decode_scalar(key)))
            pairs[_identity(key)] = (key, value if known is None else _united(known[1], value, inner))
        node = Node(kind=first.node.kind, count=len(pairs))
        return Tree(node, pairs=tuple(pairs.values()), metadata=first.metadata)
    if kinds[0] is kinds[1] and first.node.count == second.node.count and kinds[0] in SEQUENCES:
        both = enumerate(zip(first.items, second.items, strict=True))
        return Tree(first.node, items=tuple(_united(one, other, (*path, str(index))) for index, (one, other) in both))
    if kinds[0] in TENSORS and kinds[0] is kinds[1]:
        return first
    if first.holds_tensors or second.holds_tensors or kinds[0] in MAPPINGS or kinds[1] in MAPPINGS:
        raise UnsupportedStateError(
            tensor_name(path),
            f"a {_words(first)} in one process and a {_words(second)} in another",
            "give the state the same form in each, or other keys",
        )
    return first


def _identity(key: Node) -> tuple[Kind, bytes]:
    return key.kind, key.data


def _words(tree: Tree) -> str:
    count = f" of {tree.node.count}" if tree.node.kind in SEQUENCES else ""
    return f"{tree.node.kind.name.lower().replace('_', ' ')}{count}"
