"""What is saved comes back: bits, kinds, layout, sharing."""

import hashlib
import json
import math
import struct
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from safetensors.torch import load_file

import ckpt
import ckpt.distributed
from tests.ckpt.equality import same
from tests.ckpt.pieces import along, save_in_pieces
from tests.ckpt.strategies import states

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(state=states)
def test_any_state_comes_back_and_keeps_its_root(state: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("state")
    try:
        saved = ckpt.save(state, folder / "first")
    except ckpt.UnsupportedStateError:  # {0: t, "0": t}: two tensors of one name
        reject()

    loaded = ckpt.load(folder / "first", verify="sha256")

    assert same(loaded, state)
    assert ckpt.save(loaded, folder / "second").root == saved.root


def test_kinds_survive(tmp_path: Path) -> None:
    state = {
        "ordered": OrderedDict(b=1, a=2),
        "counter": Counter("aab"),
        "size": torch.Size([2, 3]),
        "numpy": np.float32(1.5),
        "array": np.arange(6, dtype=np.uint16).reshape(2, 3),
        3: (True, 1, 1.0, None),
        "nan": math.nan,
    }

    ckpt.save(state, tmp_path / "c")
    loaded = ckpt.load(tmp_path / "c")

    assert same({k: v for k, v in loaded.items() if k != "nan"}, {k: v for k, v in state.items() if k != "nan"})
    assert type(loaded["ordered"]) is OrderedDict
    assert type(loaded["counter"]) is Counter


def test_a_module_keeps_its_versions_and_its_values(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    twin = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))

    ckpt.save(model.state_dict(), tmp_path / "c")
    loaded = ckpt.load(tmp_path / "c")
    ckpt.load_into(twin, tmp_path / "c")

    assert loaded._metadata == model.state_dict()._metadata
    assert all(torch.equal(a, b) for a, b in zip(twin.state_dict().values(), loaded.values(), strict=True))


def test_a_module_without_memory_is_refused_and_one_without_shapes_gets_them(tmp_path: Path) -> None:
    ckpt.save(torch.nn.Linear(2, 1).state_dict(), tmp_path / "c")
    lazy = torch.nn.LazyLinear(1)

    with pytest.raises(RuntimeError, match=r"'weight' of the module is on the meta device, .* module\.to_empty"):
        ckpt.load_into(torch.nn.Linear(2, 1, device="meta"), tmp_path / "c")
    ckpt.load_into(lazy, tmp_path / "c")

    assert torch.equal(lazy.weight, ckpt.load(tmp_path / "c")["weight"])


class Renaming(torch.nn.Linear):
    """Takes what was saved under an older name."""

    def _load_from_state_dict(self, state_dict: dict[str, torch.Tensor], prefix: str, *arguments: object) -> None:
        if prefix + "kernel" in state_dict:
            state_dict[prefix + "weight"] = state_dict.pop(prefix + "kernel")
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def test_names_that_are_missing_or_too_many_are_refused_before_a_copy(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LazyLinear(1))
    module.register_buffer("flags", torch.zeros(2, dtype=torch.uint8).view(torch.int4))
    saved = {name: value for name, value in module[0].state_dict(prefix="0.").items() if name != "0.bias"}
    before = module[0].weight.detach().clone()
    ckpt.save({name: value + 1 for name, value in saved.items()} | {"more": torch.ones(1)}, tmp_path / "c")

    with pytest.raises(RuntimeError, match=r'(?s)Missing key\(s\).*"0\.bias".*Unexpected key\(s\).*"more"'):
        ckpt.load_into(module, tmp_path / "c")

    assert torch.equal(module[0].weight, before)


def test_a_module_that_loads_older_names_does_so(tmp_path: Path) -> None:
    module = Renaming(2, 1)
    ckpt.save({"kernel": torch.ones(1, 2), "bias": torch.ones(1)}, tmp_path / "c")

    ckpt.load_into(module, tmp_path / "c")

    assert module.weight.tolist() == [[1.0, 1.0]]


def test_tensors_that_share_memory_share_it_again_and_cost_it_once(tmp_path: Path) -> None:
    flat = torch.arange(1000.0)
    state = {"a": flat[:500], "b": flat[250:], "tied": flat[:500]}

    manifest = ckpt.save(state, tmp_path / "c")
    loaded = ckpt.load(tmp_path / "c")
    loaded["a"][499] = -1

    assert manifest.payload_bytes == 4000
    assert loaded["b"][249] == -1
    assert loaded["tied"][499] == -1


def test_a_slice_of_a_large_buffer_stores_the_slice(tmp_path: Path) -> None:
    state = {"slice": torch.arange(1_000_000)[500:510]}

    manifest = ckpt.save(state, tmp_path / "c")

    assert manifest.payload_bytes == 80


def test_bytes_between_views_never_reach_the_file(tmp_path: Path) -> None:
    flat = torch.full((8,), 7, dtype=torch.uint8)
    state = {"left": flat[:2], "right": flat[6:]}

    ckpt.save(state, tmp_path / "c")

    payload = next((tmp_path / "c").glob("extra-*")).read_bytes()[-8:]
    assert payload == bytes([7, 7, 0, 0, 0, 0, 7, 7])


def test_changing_loaded_tensors_leaves_the_file_alone(tmp_path: Path) -> None:
    ckpt.save({"w": torch.ones(4)}, tmp_path / "c")

    ckpt.load(tmp_path / "c")["w"].zero_()

    assert ckpt.load(tmp_path / "c")["w"].tolist() == [1, 1, 1, 1]


def test_the_root_knows_content_only(tmp_path: Path) -> None:
    state = {"a": torch.ones(3), "b": torch.zeros(2), "n": 1}
    note = tmp_path / "note.txt"
    note.write_text("hello")

    plain = ckpt.save(state, tmp_path / "plain")
    sharded = ckpt.save(dict(reversed(state.items())), tmp_path / "sharded", shard_bytes=1)
    attached = ckpt.save(state, tmp_path / "attached", attachments={"docs/note.txt": note}, metadata={"k": "v"})
    other = ckpt.save({**state, "n": 2}, tmp_path / "other")

    assert plain.root == sharded.root == attached.root
    assert plain.seal == sharded.seal != attached.seal
    assert other.root != plain.root


def test_root_and_seal_are_the_documented_digests(tmp_path: Path) -> None:
    """Written out by hand from docs/formats/checkpoint.md, and pinned: no release may change them."""
    manifest = ckpt.save({"w": torch.tensor([1.0, 2.0])}, tmp_path / "c", metadata={"k": "v"})

    def u64(*values: int) -> bytes:
        return b"".join(value.to_bytes(8, "little") for value in values)

    def text(value: str) -> bytes:
        return u64(len(value.encode())) + value.encode()

    def digest(domain: str, *fields: bytes) -> bytes:
        return hashlib.sha256(domain.encode() + b"\0" + b"".join(fields)).digest()

    payload = struct.pack("<ff", 1.0, 2.0)
    storage = digest("treering/storage/v1", u64(8, 1), hashlib.sha256(payload).digest())
    tensor = text("w") + text("float32") + u64(1, 2) + u64(1, 1) + u64(0, 0)
    weights = digest("treering/weights/v1", u64(1), storage, u64(1), tensor)
    key = digest("treering/state/v1", u64(6), text(""), text("w"), u64(0))
    value = digest("treering/state/v1", u64(17), text("w"), text(""), u64(0))
    root = digest("treering/root/v1", weights, digest("treering/state/v1", u64(14), u64(1), key, value))
    metadata = digest("treering/metadata/v1", u64(1), text("k"), text("v"))
    seal = digest("treering/seal/v1", root, digest("treering/attachments/v1", u64(0)), metadata)
    assert manifest.root == f"sha256:{root.hex()}"
    assert manifest.seal == f"sha256:{seal.hex()}"
    assert manifest.root.startswith("sha256:4b285eb3f81a405f")


def test_safetensors_reads_the_weights_under_their_names(tmp_path: Path) -> None:
    shared = torch.randn(4, 4)
    state = {
        "conv.weight": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "half": torch.randn(3).bfloat16(),
        "tied": shared,
        "twin": shared,
        "odd": shared[:, ::2],
    }

    ckpt.save(state, tmp_path / "c", shard_bytes=100)

    index = json.loads((tmp_path / "c" / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == {"conv.weight", "half", "tied"}
    for name, file in index.items():
        assert torch.equal(load_file(tmp_path / "c" / file)[name], state[name])


def test_tensors_and_slices_are_read_alone(tmp_path: Path) -> None:
    state = {"a": torch.arange(3_000_000), "b": torch.ones(3)}
    ckpt.save(state, tmp_path / "c")

    with ckpt.open(tmp_path / "c") as checkpoint:
        rows = checkpoint.slice("a", slice(1_000_000, 1_000_005))
        only = ckpt.load(tmp_path / "c", keys=["b"])

        assert rows.tolist() == list(range(1_000_000, 1_000_005))
        assert list(only) == ["b"]
        assert checkpoint.keys() == ["a", "b"]
        with pytest.raises(KeyError, match="no tensor 'c'"):
            checkpoint["c"]
    with pytest.raises(ValueError, match=r"keys is the text 'b'; expected names in a list, such as \['b'\]"):
        ckpt.load(tmp_path / "c", keys="b")


def test_a_row_is_asked_for_by_any_integer_and_a_missing_one_is_named(tmp_path: Path) -> None:
    save_in_pieces({"w": torch.arange(6.0).reshape(3, 2)}, tmp_path / "pieces", {"w": along((3, 2), 0, 1)})
    ckpt.save({"w": torch.arange(6.0).reshape(3, 2), "scalar": torch.tensor(1)}, tmp_path / "whole")

    with ckpt.open(tmp_path / "pieces") as pieces, ckpt.open(tmp_path / "whole") as whole:
        for checkpoint in (pieces, whole):
            for index in (np.int64(1), torch.tensor(1), 1):
                assert checkpoint.slice("w", index).tolist() == [2.0, 3.0]
            for missing in (3, -4):
                with pytest.raises(IndexError, match=r"'w' has the shape \(3, 2\); expected an index of a row"):
                    checkpoint.slice("w", missing)
        with pytest.raises(IndexError, match="'scalar' has the shape"):
            whole.slice("scalar", 0)


@pytest.mark.parametrize("metadata", [{"step": 10}, {10: "step"}, {"step": "\ud800"}, {"step": None}])
def test_metadata_that_is_no_text_is_named(metadata: Any, tmp_path: Path) -> None:
    with pytest.raises(ckpt.UnsupportedStateError, match=r"'metadata/(step|10)' is .*; metadata is text by key"):
        ckpt.save({}, tmp_path / "c", metadata=metadata)
    with pytest.raises(ckpt.UnsupportedStateError, match="metadata is text by key"):
        ckpt.distributed.Writer(tmp_path / "c", metadata=metadata)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["../a", "/a", "a\\b", "\ud800", "manifest.pb", ""])
def test_an_attachment_that_may_not_stand_there_is_a_fault_of_the_call(path: str, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("")

    with pytest.raises(
        ckpt.DestinationError, match=r"^attachment '.*': found a .*, expected (a relative|another name)"
    ):
        ckpt.save({}, tmp_path / "c", attachments={path: tmp_path / "note"})

    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"x": object()}, "'x' is a object"),
        ({"x": {"y": torch.zeros(2, 2).to_sparse()}}, "'x/y' is a tensor of layout torch.sparse_coo"),
        ({"x": torch.empty(2, device="meta")}, "a meta tensor"),
        ({"x": np.array(["text"])}, "an array of dtype <U4"),
        ({("a", 1): 2}, "a tuple"),
        ({"x": {np.int64(3): 2}}, r"'x/np.int64\(3\)' is under a key that is a int64"),
        ({torch.float32: 2}, "under a key that is a dtype"),
        ({"x": [torch.quint8]}, "'x/0' is the dtype torch.quint8"),
        ({0: torch.zeros(1), "0": torch.zeros(1)}, "second tensor of that name"),
        ({"x": {1, 2}}, "a set"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(state: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ckpt.UnsupportedStateError, match=message):
        ckpt.save(state, tmp_path / "c")

    assert not (tmp_path / "c").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_list_that_is_too_long_is_refused_before_its_elements_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.format.state.MAX_RECORDS", 10)

    with pytest.raises(ckpt.UnsupportedStateError, match="of more than 10 values"):
        ckpt.save({"long": [object()] * 20}, tmp_path / "c")
