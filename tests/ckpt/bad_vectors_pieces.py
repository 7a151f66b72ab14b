"""Bad conformance vectors about tensors in pieces, made from the vector ``pieces`` and sealed with a right checksum."""

from ckpt.proto.checkpoint_pb2 import Manifest, Piece
from tests.ckpt.bad_vectors_manifests import Lie, sealed
from tests.hostile.edits import Edit, put, storage, tensor


def pieces(message: Manifest, name: str) -> list[Piece]:
    number = [item.name for item in message.tensors].index(name)
    return [piece for piece in message.pieces if piece.tensor == number]


def drop(message: Manifest, name: str) -> None:
    """The last piece of a tensor, and its storage, which is the last one."""
    number = list(message.pieces).index(pieces(message, name)[-1])
    del message.pieces[number]


def exchange(first: Piece, second: Piece) -> None:
    first.storage, second.storage = second.storage, first.storage


def recut(message: Manifest, name: str) -> None:
    """Boxes of other forms and the same sizes, which tile the tensor too."""
    for row, piece in enumerate(pieces(message, name)):
        put(piece, offsets=[0, 0] if row == 0 else [3, 2 * row - 2], sizes=[2, 4] if row == 0 else [4, 2])


def fifth_axis(message: Manifest) -> None:
    """The tensor ``deep`` with its last axis seen as two, so that all five are cut."""
    put(tensor(message, "deep"), shape=[2] * 5, strides=[16, 8, 4, 2, 1])
    for number, piece in enumerate(pieces(message, "deep")):
        corner = [1] * min(number, 4) + [0] * (5 - min(number, 4))
        put(piece, offsets=corner if number < 5 else [1] * 5, sizes=[1] * min(number + 1, 5) + [2] * max(4 - number, 0))


LIES: dict[str, tuple[str, Edit]] = {
    "one-piece-alone": ("piece-form", lambda m: drop(m, "line")),
    "a-piece-that-reaches-out": ("piece-form", lambda m: put(pieces(m, "columns")[1], sizes=[6, 4])),
    "an-empty-piece": ("piece-form", lambda m: put(pieces(m, "columns")[1], sizes=[6, 0])),
    "a-piece-at-2-64": ("piece-form", lambda m: put(pieces(m, "columns")[1], offsets=[0, 2**64 - 1])),
    "a-piece-of-one-axis": ("piece-form", lambda m: put(pieces(m, "columns")[1], offsets=[1], sizes=[3])),
    "offsets-without-sizes": ("piece-form", lambda m: put(pieces(m, "columns")[1], sizes=[])),
    "strides-of-a-tensor-in-pieces": ("piece-form", lambda m: put(tensor(m, "columns"), strides=[1, 6])),
    "an-offset-of-a-tensor-in-pieces": ("piece-form", lambda m: put(tensor(m, "columns"), offset=4)),
    "pieces-in-exchanged-storages": ("piece-form", lambda m: exchange(*pieces(m, "columns"))),
    "five-axes-that-are-cut": ("piece-form", fifth_axis),
    "a-gap-between-pieces": ("piece-tiling", lambda m: put(pieces(m, "grid")[7], sizes=[2, 2, 1])),
    "a-piece-over-another": ("piece-tiling", lambda m: put(pieces(m, "columns")[0], sizes=[6, 2])),
    "pieces-out-of-order": ("not-sorted", lambda m: put(m, pieces=m.pieces[::-1])),
    "a-piece-twice": ("not-sorted", lambda m: m.pieces.append(m.pieces[-1])),
    "a-piece-of-no-tensor": ("reference", lambda m: put(m.pieces[-1], tensor=99)),
    "a-piece-in-no-storage": ("reference", lambda m: put(m.pieces[-1], storage=99)),
    "two-pieces-in-one-storage": (
        "piece-sharing",
        lambda m: put(pieces(m, "rows")[2], storage=pieces(m, "rows")[1].storage),
    ),
    "tied-by-one-piece": (
        "piece-sharing",
        lambda m: put(pieces(m, "tied")[2], storage=pieces(m, "columns")[0].storage),
    ),
    "tied-and-of-another-dtype": ("piece-sharing", lambda m: put(tensor(m, "tied"), dtype="int32")),
    "a-plain-view-of-a-piece": (
        "piece-sharing",
        lambda m: put(tensor(m, "plain"), storage=pieces(m, "deep")[0].storage),
    ),
    "a-smaller-dtype-of-pieces": ("storage-bounds", lambda m: put(tensor(m, "columns"), dtype="float16")),
    "a-longer-storage-of-a-piece": ("storage-bounds", lambda m: put(storage(m, "columns"), size=28)),
    "adopted-files-in-pieces": ("adopted-storage", lambda m: put(m, adopted=True)),
}


def lies() -> dict[str, Lie]:
    return {name: (word, "pieces", sealed(edit)) for name, (word, edit) in LIES.items()}
