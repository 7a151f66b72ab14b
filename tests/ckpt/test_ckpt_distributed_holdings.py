"""Who stores what: pure functions of what each process says that it holds."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch

import ckpt
from ckpt.distributed.holdings import Cut, Holding, agreed, holding_of
from ckpt.distributed.trees import united
from ckpt.format.boxes import Box, whole
from ckpt.format.piece_rules import MAX_PIECES
from ckpt.format.records import TensorRecord
from ckpt.format.state import Kind, Node, flatten, unflatten
from tests.ckpt.pieces import along, rows


def holding(
    boxes: Mapping[str, Sequence[Box]], *, shape: tuple[int, ...] = (6, 4), tied: Mapping[str, str] = {}
) -> Holding:
    """A process that holds these boxes of these tensors."""
    nodes = [Node(kind=Kind.DICT, count=len(boxes))]
    for name in boxes:
        nodes += [Node(kind=Kind.STR, data=name.encode()), Node(kind=Kind.TENSOR, name=name)]
    cuts = [
        Cut(name=name, dtype="float32", shape=shape, boxes=tuple(own), tied=tied.get(name, name))
        for name, own in boxes.items()
        if own
    ]
    return Holding(state=tuple(nodes), groups=(), cuts=tuple(cuts))


def plain(state: Any) -> Holding:
    return holding_of(*flatten(state))[0]


HALVES = rows((6, 4), 3)
COLUMNS = along((6, 4), 1, 2)


def test_pieces_are_in_canonical_order_whoever_holds_them() -> None:
    made = agreed([holding({"w": HALVES[1:], "v": COLUMNS[:1]}), holding({"w": HALVES[:1], "v": COLUMNS[1:]})])

    assert made.keys == (("v", (0, 0)), ("v", (0, 2)), ("w", (0, 0)), ("w", (3, 0)))
    assert [record.storage for record in made.records] == [2, 0]
    assert [(piece.tensor, piece.offsets, piece.storage) for piece in made.pieces] == [
        (0, (0, 0), 2),
        (0, (3, 0), 3),
        (1, (0, 0), 0),
        (1, (0, 2), 1),
    ]
    assert made.writers == (0, 1, 1, 0)


def test_many_views_of_one_memory_are_compared_once_with_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's layout: not each of them with all."""
    flat = torch.zeros(300)
    states = [deepcopy(plain({f"v{n}": flat[n : n + 1] for n in range(300)})) for _ in range(3)]
    compared = 0
    equal = TensorRecord.__eq__

    def count(one: TensorRecord, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(one, other)

    monkeypatch.setattr(TensorRecord, "__eq__", count)

    made = agreed(states)

    assert len(made.records) == 300
    assert compared <= 2 * 300


def test_replicas_are_shared_out_by_size() -> None:
    state = {"a": torch.zeros(100), "b": torch.zeros(60), "c": torch.zeros(30), "d": torch.zeros(20)}

    made = agreed([plain(state)] * 2)

    assert dict(zip(made.keys, made.writers, strict=True)) == {
        ("a", None): 0,
        ("b", None): 1,
        ("c", None): 1,
        ("d", None): 1,
    }


@pytest.mark.parametrize(
    ("holdings", "reason"),
    [
        ([{"w": HALVES[:1]}, {"w": ()}], r"a gap or an overlap at element \(3, 0\)"),
        ([{"w": HALVES}, {"w": COLUMNS[:1]}], r"a gap or an overlap at element \(0, 0\)"),
        ([{"w": [Box((0, 0), (7, 4))]}, {"w": ()}], "empty or not inside"),
        ([{"w": ()}, {"w": ()}], "none of the processes holds"),
    ],
)
def test_shards_that_do_not_make_a_tensor_are_refused(holdings: list[dict[str, Sequence[Box]]], reason: str) -> None:
    with pytest.raises(ckpt.UnsupportedStateError, match=reason) as caught:
        agreed([holding(boxes) for boxes in holdings])

    assert caught.value.path == "w"


@pytest.mark.parametrize(
    ("shape", "boxes", "reason"),
    [
        ((MAX_PIECES + 1,), rows((MAX_PIECES + 1,), *range(1, MAX_PIECES + 1)), "16385 pieces, .* at most 16384"),
        ((2,) * 5, [Box(at, (1,) * 5) for at in product((0, 1), repeat=5)], "cuts along 5 axes, .* at most 4"),
    ],
)
def test_shards_that_are_too_fine_are_refused_with_the_remedy(
    shape: tuple[int, ...], boxes: list[Box], reason: str
) -> None:
    with pytest.raises(ckpt.UnsupportedStateError, match=f"{reason}.*; redistribute it to coarser shards"):
        agreed([holding({"w": boxes}, shape=shape)])


def test_processes_that_differ_about_a_tensor_are_refused() -> None:
    mine, shared = holding({"w": HALVES[:1]}), torch.zeros(4)

    with pytest.raises(
        ckpt.UnsupportedStateError, match=r"shards of float32 .6, 4., .* and rank 1 shards of float32 .6, 5."
    ):
        agreed([mine, holding({"w": HALVES[1:]}, shape=(6, 5))])
    with pytest.raises(ckpt.UnsupportedStateError, match="in the memory of 'v'"):
        agreed([mine, holding({"v": HALVES[1:], "w": HALVES[1:]}, tied={"w": "v"})])
    with pytest.raises(ckpt.UnsupportedStateError, match=r"rank 0 holds 'a' float32 .* and rank 1 'a' float32 .*, 'b'"):
        agreed([plain({"a": shared.clone(), "b": shared.clone()}), plain({"a": shared, "b": shared})])


def test_tensors_that_share_memory_are_written_by_one_process() -> None:
    flat = torch.zeros(10)

    made = agreed([plain({"a": flat[:6], "b": flat[4:], "c": torch.zeros(1)})] * 2)

    assert made.keys == (("a", None), ("c", None))
    assert [(record.name, record.storage, record.offset) for record in made.records] == [
        ("a", 0, 0),
        ("b", 0, 16),
        ("c", 1, 0),
    ]


def joined(*states: Any) -> Any:
    return unflatten(united([flatten(state)[0] for state in states]), {})


def test_mappings_are_united_and_the_first_value_counts() -> None:
    assert joined({"a": 1, "d": {1: "x"}}, {"b": 2, "a": 9, "d": {2: None}}) == {"a": 1, "b": 2, "d": {1: "x", 2: None}}
    assert joined({"l": [1, {"a": 1}]}, {"l": [2, {"b": 2}]}) == {"l": [1, {"a": 1, "b": 2}]}
    assert joined({"l": [1]}, {"l": [2, 3]}, {"l": None}) == {"l": [1]}
    assert joined({"l": [{}]}, {"l": [1, 2]}, {"l": [{"a": 1}]}) == {"l": [{"a": 1}]}
    assert joined({"a": 1}, {"b": 2}, {"c": 3, "a": 9}) == {"a": 1, "b": 2, "c": 3}
    assert joined({1: "int"}, {"1": "text"}) == {1: "int", "1": "text"}


def test_an_ordered_dict_keeps_the_metadata_of_the_first() -> None:
    first, second = OrderedDict(a=1), OrderedDict(b=2)
    first._metadata, second._metadata = {"version": 1}, {"version": 2}

    made = joined({"m": first}, {"m": second})["m"]

    assert list(made.items()) == [("a", 1), ("b", 2)]
    assert made._metadata == {"version": 1}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": {"b": 1}}, {"a": {"b": {}}}),
        ({"a": {"b": [torch.ones(1)]}}, {"a": {"b": []}}),
        ({"a": {"b": torch.ones(1)}}, {"a": {"b": 2}}),
        ({"a": {"b": 2}}, {"a": {"b": torch.ones(1)}}),
    ],
)
def test_states_of_two_forms_are_refused_with_the_path(first: Any, second: Any) -> None:
    with pytest.raises(
        ckpt.UnsupportedStateError, match=r"the value at 'a/b' is a .* in one process and a .* in another"
    ):
        joined(first, second)


def test_a_whole_tensor_in_one_process_needs_nothing_of_the_others() -> None:
    """One row over two processes: the second one holds nothing."""
    made = agreed([plain({"w": torch.zeros(1, 4)}), holding({"w": ()}, shape=(1, 4))])

    assert (made.keys, made.pieces, made.sizes) == ((("w", None),), (), (16,))
    assert whole((1, 4)) == Box((0, 0), (1, 4))
