"""A state laid beside a stored one: what is filled, what is replaced, and what is told when it does not fit."""

from collections import OrderedDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.planner import SavePlan

import ckpt
import ckpt.distributed
from ckpt.distributed.saving import SavePlanner, Writer, _Tasks
from tests.ckpt.equality import same
from tests.ckpt.pieces import rows, save_in_pieces

STORED = {
    "w": torch.arange(12.0).reshape(6, 2),
    "half": torch.arange(4, dtype=torch.float16),
    "array": np.arange(3, dtype=np.uint32),
    "nested": {1: "one", "1": "text", "deep": [1, {"x": (torch.ones(2), 5)}]},
    "list": [1, 2, 3],
    "empty": {},
    "none": None,
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    save_in_pieces(STORED, folder / "c", {"w": rows((6, 2), 1, 4)})
    return folder / "c"


def test_tensors_are_filled_where_they_lie_and_other_values_replaced(stored: Path) -> None:
    weights, pair = torch.zeros(6, 2), torch.zeros(2)
    deep: list[Any] = [0, {"x": (pair, 0)}]
    nested: dict[Any, Any] = {1: None, "1": None, "deep": deep}
    state = {"w": weights, "array": np.zeros(3), "nested": nested, "list": [], "none": 7}

    ckpt.distributed.load(state, stored)

    assert same(state, {key: STORED[key] for key in state})
    assert state["w"] is weights
    assert state["nested"] is nested
    assert nested["deep"] is deep
    assert deep[1]["x"][0] is pair


def test_tensors_of_any_strides_are_filled(stored: Path) -> None:
    wide = torch.zeros(2, 2, 6)
    transposed, parameter = wide[1].t(), torch.nn.Parameter(torch.zeros(4, dtype=torch.float16))

    ckpt.distributed.load({"w": transposed, "half": parameter}, stored)

    assert torch.equal(wide[1], torch.as_tensor(STORED["w"]).t())
    assert wide[0].sum() == 0
    assert parameter.tolist() == [0, 1, 2, 3]


def test_an_empty_mapping_takes_what_is_stored_unless_that_holds_tensors(stored: Path) -> None:
    state: dict[str, Any] = {"empty": {"kept": 1}, "nested": {}, "list": None}

    ckpt.distributed.load(state, stored, allow_partial_load=True)

    assert state == {"empty": {"kept": 1}, "nested": {}, "list": [1, 2, 3]}


def test_what_is_not_stored_is_refused_or_left_alone(stored: Path) -> None:
    state = {"more": torch.zeros(2), "w": torch.zeros(6, 2), "nested": {2: None}}

    with pytest.raises(
        ckpt.StateMismatchError, match=r"has nothing at 'more'.* 1 more of its values do not fit"
    ) as caught:
        ckpt.distributed.load(state, stored)
    untouched = state["w"].sum() == 0
    ckpt.distributed.load(state, stored, allow_partial_load=True)

    assert (caught.value.key, caught.value.others, untouched) == ("more", 1, True)
    assert torch.equal(state["w"], STORED["w"])
    assert state["more"].sum() == 0


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (
            {"w": torch.zeros(2, 6)},
            r"a tensor of torch.float32 \(6, 2\) at 'w', expected a tensor of torch.float32 \(2, 6\)",
        ),
        ({"w": torch.zeros(6, 2, dtype=torch.float64)}, "expected a tensor of torch.float64"),
        ({"w": torch.zeros(6, 2, device="meta")}, "the meta device, which has no memory: call .to_empty"),
        ({"w": None}, "expected a NoneType"),
        ({"w": {"inner": 1}}, "expected a mapping"),
        ({"w": [torch.zeros(1)]}, "expected a list of 1"),
        ({"array": torch.zeros(2, dtype=torch.uint32)}, "a ndarray of torch.uint32"),
        ({"array": np.zeros(4)}, "expected an array"),
        ({"half": np.zeros(4, np.float16)}, "expected an array"),
        ({"none": torch.zeros(1)}, "has a none at 'none'"),
        ({"list": [torch.zeros(1)]}, "has a list at 'list', expected a list of 1"),
        ({"nested": {"deep": [1]}}, "has a list at 'nested/deep', expected a list of 1"),
        ({"nested": {"deep": [1, MappingProxyType({})]}}, "expected a mappingproxy"),
        ({"nested": None}, "expected a NoneType"),
    ],
)
def test_a_state_of_another_form_is_refused(stored: Path, state: dict[str, Any], reason: str) -> None:
    with pytest.raises(ckpt.StateMismatchError, match=reason):
        ckpt.distributed.load(state, stored)


def test_the_outermost_mapping_stays_what_it_is(tmp_path: Path) -> None:
    """DCP itself would make a dict of it, and cannot sort its keys."""
    module = torch.nn.BatchNorm1d(3)
    made = ckpt.distributed.save(module.state_dict(), tmp_path / "module")
    ckpt.distributed.save({0: 1, "text": 2}, tmp_path / "numbers")
    numbers = {0: None, "text": None}

    ckpt.distributed.load(numbers, tmp_path / "numbers")

    assert made.root == ckpt.save(module.state_dict(), tmp_path / "plain").root
    assert type(ckpt.load(tmp_path / "module")) is OrderedDict
    assert numbers == {0: 1, "text": 2}


def test_attachments_metadata_and_shards_are_those_that_were_asked_for(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("hello")

    made = ckpt.distributed.save(
        {"a": torch.ones(4), "b": torch.ones(4)},
        tmp_path / "c",
        attachments={"docs/note": tmp_path / "note"},
        metadata={"k": "v"},
        shard_bytes=16,
    )

    manifest = ckpt.read_manifest(tmp_path / "c")
    assert (manifest.root, manifest.seal) == (made.root, made.seal)
    assert manifest.metadata == {"k": "v"}
    assert [record.name[:13] for record in manifest.files] == ["weights-00001", "weights-00002", "model.safeten"]
    with ckpt.open(tmp_path / "c") as opened:
        assert opened.attachment("docs/note").read_text() == "hello"


def test_a_checkpoint_is_replaced_only_when_asked(tmp_path: Path) -> None:
    ckpt.distributed.save({"n": 1}, tmp_path / "c")

    with pytest.raises(ckpt.DestinationError, match="exists already"):
        ckpt.distributed.save({"n": 2}, tmp_path / "c")
    ckpt.distributed.save({"n": 3}, tmp_path / "c", overwrite=True)

    assert ckpt.load(tmp_path / "c") == {"n": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_file_that_others_wrote_is_loaded_after_its_adoption(tmp_path: Path) -> None:
    save_file({"w": torch.arange(6.0).reshape(2, 3)}, tmp_path / "x.safetensors")
    ckpt.adopt(tmp_path / "x.safetensors")
    state = {"w": torch.zeros(2, 3)}

    ckpt.distributed.load(state, tmp_path / "x.safetensors")

    assert torch.equal(state["w"], torch.arange(6.0).reshape(2, 3))


def test_a_folder_that_a_process_does_not_see_is_named(tmp_path: Path) -> None:
    tasks = SavePlan([], storage_data=_Tasks(folder=tmp_path / "elsewhere", files=()))

    with pytest.raises(ckpt.DestinationError, match="a file system that all processes share"):
        Writer(tmp_path / "c").write_data(tasks, SavePlanner())


def test_what_makes_no_sense_is_refused_at_once(tmp_path: Path) -> None:
    ckpt.save({"n": 1}, tmp_path / "c")

    with pytest.raises(ValueError, match="shard_bytes is 0"):
        ckpt.distributed.save({"n": 1}, tmp_path / "d", shard_bytes=0)
    with pytest.raises(ValueError, match="verify is 'crc'; expected one of"):
        ckpt.distributed.load({"n": 1}, tmp_path / "c", verify="crc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="use_collectives is False"):
        Writer(tmp_path / "d").set_up_storage_writer(True, rank=0, use_collectives=False)
