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
    different = [*dict.fromkeys(states)]
    return different[0] if len(different) == 1 else tuple(_united([tree_of(state) for state in different], ()).nodes())


def _united(trees: Sequence[Tree], path: tuple[str, ...]) -> Tree:
    """All of them at once: one after the other, the work would grow with the square of the number of processes."""
    first = trees[0]
    alike = [tree for tree in trees if _form(tree) == _form(first)]
    others = [tree for tree in trees if _form(tree) != _form(first)]
    if others and any(tree.holds_tensors or tree.node.kind in MAPPINGS for tree in trees):
        raise UnsupportedStateError(
            tensor_name(path),
            f"a {_words(first)} in one process and a {_words(others[0])} in another",
            "give the state the same form in each, or other keys",
        )
    if first.node.kind in SEQUENCES:
        both = enumerate(zip(*(tree.items for tree in alike), strict=True))
        return Tree(first.node, items=tuple(_united(items, (*path, str(index))) for index, items in both))
    if first.node.kind not in MAPPINGS:
        return first
    found: dict[tuple[Kind, bytes], tuple[Node, list[Tree]]] = {}
    for tree in alike:
        for key, value in tree.pairs:
            found.setdefault(_identity(key), (key, []))[1].append(value)
    pairs = tuple((key, _united(values, (*path, str(decode_scalar(key))))) for key, values in found.values())
    return Tree(Node(kind=first.node.kind, count=len(pairs)), pairs=pairs, metadata=first.metadata)


def _form(tree: Tree) -> tuple[Kind, int]:
    return tree.node.kind, len(tree.items)


def _identity(key: Node) -> tuple[Kind, bytes]:
    return key.kind, key.data


def _words(tree: Tree) -> str:
    count = f" of {tree.node.count}" if tree.node.kind in SEQUENCES else ""
    return f"{tree.node.kind.name.lower().replace('_', ' ')}{count}"
