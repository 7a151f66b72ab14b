"""Lies about pieces, sealed with a right checksum."""

from pathlib import Path

import torch

from ckpt.proto.checkpoint_pb2 import Manifest, Piece
from tests.ckpt.pieces import along, rows, save_in_pieces
from tests.hostile.edits import put, tensor
from tests.hostile.lies import Lie

HUGE = 2**63


def save_pieces(folder: Path) -> None:
    """``victim``: tensors in pieces, two of them tied."""
    state = {"plain": torch.zeros(4), "tied": torch.zeros(6, 4), "u": torch.zeros(6, 4), "w": torch.zeros(6, 4)}
    cuts = {"tied": rows((6, 4), 2, 4), "w": along((6, 4), 1, 2)}
    save_in_pieces(state, folder / "victim", cuts, ties={"u": "tied"})


def pieces(message: Manifest, name: str) -> list[Piece]:
    number = [item.name for item in message.tensors].index(name)
    return [piece for piece in message.pieces if piece.tensor == number]


def drop(message: Manifest, *numbers: int) -> None:
    for number in sorted(numbers, reverse=True):
        del message.pieces[number]


def exchange(first: Piece, second: Piece) -> None:
    first.storage, second.storage = second.storage, first.storage


def recut(message: Manifest, name: str) -> None:
    first, second, _ = pieces(message, name)
    put(first, sizes=[1, 4])
    put(second, offsets=[1, 0], sizes=[3, 4])


PIECES: dict[str, Lie] = {
    "a piece less": Lie(lambda m: drop(m, 7), "1 pieces"),
    "a middle piece less": Lie(lambda m: drop(m, 1), "a gap or an overlap at element"),
    "a piece over another": Lie(lambda m: put(pieces(m, "w")[1], offsets=[0, 1]), "a gap or an overlap at element"),
    "a smaller piece": Lie(lambda m: put(pieces(m, "w")[1], sizes=[6, 1]), "a gap or an overlap at element"),
    "a piece that reaches out": Lie(lambda m: put(pieces(m, "w")[1], sizes=[6, 3]), "a box at"),
    "an empty piece": Lie(lambda m: put(pieces(m, "w")[1], sizes=[6, 0]), "a box at"),
    "a piece of 2^63 rows": Lie(lambda m: put(pieces(m, "w")[1], sizes=[HUGE, 2]), "a box at"),
    "a piece at 2^64 - 1": Lie(lambda m: put(pieces(m, "w")[1], offsets=[0, 2**64 - 1]), "a box at"),
    "a piece of one axis": Lie(lambda m: put(pieces(m, "w")[1], offsets=[2], sizes=[2]), "a box at"),
    "more offsets than sizes": Lie(lambda m: put(pieces(m, "w")[1], offsets=[0, 2, 0]), "3 offsets, 2 sizes"),
    "too many axes": Lie(lambda m: put(pieces(m, "w")[1], offsets=[0] * 65, sizes=[1] * 65), "65 offsets"),
    "another order": Lie(lambda m: put(m, pieces=m.pieces[::-1]), "pieces out of order or twice"),
    "a piece twice": Lie(lambda m: m.pieces.append(m.pieces[7]), "pieces out of order or twice"),
    "a tensor that is not there": Lie(lambda m: [put(piece, tensor=9) for piece in m.pieces[6:]], "tensor 9"),
    "a storage that is not there": Lie(lambda m: put(m.pieces[7], storage=99), "a piece beyond the storages"),
    "two pieces in one storage": Lie(
        lambda m: put(m.pieces[7], storage=m.pieces[6].storage), "two pieces in one storage"
    ),
    "storages exchanged": Lie(lambda m: exchange(m.pieces[6], m.pieces[7]), "strides, an offset or another storage"),
    "another first storage": Lie(lambda m: put(tensor(m, "w"), storage=0), "strides, an offset or another storage"),
    "other strides": Lie(lambda m: put(tensor(m, "w"), strides=[1, 6]), "strides, an offset or another storage"),
    "an offset": Lie(lambda m: put(tensor(m, "w"), offset=4), "strides, an offset or another storage"),
    "a smaller dtype": Lie(lambda m: put(tensor(m, "w"), dtype="float16"), "those alone"),
    "a larger dtype": Lie(lambda m: put(tensor(m, "w"), dtype="float64"), "those alone"),
    "tied by one piece": Lie(lambda m: put(pieces(m, "w")[1], storage=pieces(m, "u")[1].storage), "all of its pieces"),
    "tied and of another dtype": Lie(lambda m: put(tensor(m, "u"), dtype="int32"), "all of its pieces"),
    "tied and cut otherwise": Lie(lambda m: recut(m, "u"), "all of its pieces"),
    "a plain view of a piece": Lie(
        lambda m: put(tensor(m, "plain"), storage=tensor(m, "w").storage),
        "a view of another tensor's piece",
    ),
    "adopted files in pieces": Lie(lambda m: put(m, adopted=True), "found pieces in files that others wrote"),
}
