"""Lies about pieces, sealed with a right checksum: each is refused for its own reason before anything is allocated."""

from pathlib import Path

import pytest
import torch

import ckpt
from ckpt.boxes import Box
from ckpt.piece_rules import MAX_CUT_AXES, untiled
from ckpt.proto.checkpoint_pb2 import Manifest, Piece
from tests.ckpt.hostile import Edit, copied, put, rewrite_manifest, tensor
from tests.ckpt.pieces import along, rows, save_in_pieces

HUGE = 2**63


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("victim")
    state = {"plain": torch.zeros(4), "tied": torch.zeros(6, 4), "u": torch.zeros(6, 4), "w": torch.zeros(6, 4)}
    cuts = {"tied": rows((6, 4), 2, 4), "w": along((6, 4), 1, 2)}
    save_in_pieces(state, folder / "c", cuts, ties={"u": "tied"})
    return folder / "c"


def pieces(message: Manifest, name: str) -> list[Piece]:
    number = [item.name for item in message.tensors].index(name)
    return [piece for piece in message.pieces if piece.tensor == number]


def drop(message: Manifest, *numbers: int) -> None:
    for number in sorted(numbers, reverse=True):
        del message.pieces[number]


LIES: dict[str, tuple[Edit, str]] = {
    "a piece less": (lambda m: drop(m, 7), "1 pieces"),
    "a middle piece less": (lambda m: drop(m, 1), "a gap or an overlap at element"),
    "a piece over another": (lambda m: put(pieces(m, "w")[1], offsets=[0, 1]), "a gap or an overlap at element"),
    "a smaller piece": (lambda m: put(pieces(m, "w")[1], sizes=[6, 1]), "a gap or an overlap at element"),
    "a piece that reaches out": (lambda m: put(pieces(m, "w")[1], sizes=[6, 3]), "a box at"),
    "an empty piece": (lambda m: put(pieces(m, "w")[1], sizes=[6, 0]), "a box at"),
    "a piece of 2^63 rows": (lambda m: put(pieces(m, "w")[1], sizes=[HUGE, 2]), "a box at"),
    "a piece at 2^64 - 1": (lambda m: put(pieces(m, "w")[1], offsets=[0, 2**64 - 1]), "a box at"),
    "a piece of one axis": (lambda m: put(pieces(m, "w")[1], offsets=[2], sizes=[2]), "a box at"),
    "more offsets than sizes": (lambda m: put(pieces(m, "w")[1], offsets=[0, 2, 0]), "3 offsets, 2 sizes"),
    "too many axes": (lambda m: put(pieces(m, "w")[1], offsets=[0] * 65, sizes=[1] * 65), "65 offsets"),
    "another order": (lambda m: put(m, pieces=m.pieces[::-1]), "pieces out of order or twice"),
    "a piece twice": (lambda m: m.pieces.append(m.pieces[7]), "pieces out of order or twice"),
    "a tensor that is not there": (lambda m: [put(piece, tensor=9) for piece in m.pieces[6:]], "tensor 9"),
    "a storage that is not there": (lambda m: put(m.pieces[7], storage=99), "a piece beyond the storages"),
    "two pieces in one storage": (lambda m: put(m.pieces[7], storage=m.pieces[6].storage), "two pieces in one storage"),
    "storages exchanged": (lambda m: exchange(m.pieces[6], m.pieces[7]), "strides, an offset or another storage"),
    "another first storage": (lambda m: put(tensor(m, "w"), storage=0), "strides, an offset or another storage"),
    "other strides": (lambda m: put(tensor(m, "w"), strides=[1, 6]), "strides, an offset or another storage"),
    "an offset": (lambda m: put(tensor(m, "w"), offset=4), "strides, an offset or another storage"),
    "a smaller dtype": (lambda m: put(tensor(m, "w"), dtype="float16"), "those alone"),
    "a larger dtype": (lambda m: put(tensor(m, "w"), dtype="float64"), "those alone"),
    "tied by one piece": (lambda m: put(pieces(m, "w")[1], storage=pieces(m, "u")[1].storage), "all of its pieces"),
    "tied and of another dtype": (lambda m: put(tensor(m, "u"), dtype="int32"), "all of its pieces"),
    "tied and cut otherwise": (lambda m: recut(m, "u"), "all of its pieces"),
    "a plain view of a piece": (
        lambda m: put(tensor(m, "plain"), storage=tensor(m, "w").storage),
        "a view of another tensor's piece",
    ),
    "adopted files in pieces": (lambda m: put(m, adopted=True), "."),
}


def exchange(first: Piece, second: Piece) -> None:
    first.storage, second.storage = second.storage, first.storage


def recut(message: Manifest, name: str) -> None:
    first, second, _ = pieces(message, name)
    put(first, sizes=[1, 4])
    put(second, offsets=[1, 0], sizes=[3, 4])


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_pieces_is_refused(victim: Path, tmp_path: Path, lie: str) -> None:
    edit, reason = LIES[lie]
    folder = copied(victim, tmp_path / "c")
    rewrite_manifest(folder, edit)

    with pytest.raises(ckpt.FormatError, match=reason):
        ckpt.read_manifest(folder)
    assert not ckpt.verify(folder)


def test_the_victim_itself_is_sound(victim: Path) -> None:
    assert ckpt.verify(victim).ok


def test_boxes_cut_along_many_axes_are_not_counted() -> None:
    """Each axis that is cut doubles the corners of a box."""
    axes = MAX_CUT_AXES + 1
    boxes = [Box((number,) * axes, (1,) * axes) for number in range(2)]

    assert untiled((2,) * axes, boxes) == f"cuts along {axes} axes, of which at most {MAX_CUT_AXES} are read"
