"""Live memory goes to the target and back, bit for bit, from any state between, as often as asked; or is left alone."""

import mmap
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import ckpt
from ckpt.deltas.live import writes
from ckpt.deltas.live.memory import live_storages
from ckpt.format.digests import sha256
from tests.ckpt.equality import same
from tests.ckpt.live_states import (
    State,
    copy_of,
    deltas_of,
    live_at,
    manifest,
    memories,
    several_on_disk,
    untouched,
    with_bytes,
)
from tests.ckpt.pieces import rows, save_in_pieces
from tests.ckpt.signers import FOREIGN, OLD, trusting
from tests.ckpt.strategies import DTYPES, tensors
from tests.hostile.edits import copied, rewrite_delta

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


# --- there and back ---------------------------------------------------------------------------------------------------


@st.composite
def two_states(draw: st.DrawFn) -> tuple[State, State]:
    """Any two states with the same tables; bool is 0 or 1, all other bits are any."""
    old = {name: draw(tensors()) for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))}
    first = next(iter(old.values()))
    if draw(st.booleans()):
        old["tied"] = first
    if draw(st.booleans()) and first.dim():
        old["part"] = first[:1]
    largest = 1 if any(tensor.dtype is torch.bool for tensor in old.values()) else 255

    def changed(data: bytes) -> bytes:
        found = bytearray(data)
        for place in draw(st.lists(st.integers(0, max(len(data) - 1, 0)), max_size=8)) if data else ():
            found[place] = draw(st.integers(0, largest))
        return bytes(found)

    return old, with_bytes(old, changed)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pair=two_states(), calls=st.lists(st.sampled_from(["apply", "undo", "some", "other"]), max_size=6))
def test_any_state_goes_there_and_back(
    pair: tuple[State, State], calls: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    old, new = pair
    folder = tmp_path_factory.mktemp("pair")
    try:
        (delta,) = deltas_of(folder, old, new)
    except ckpt.UnsupportedStateError:
        reject()
    live = copy_of(old)
    before = memories(live)

    patch = ckpt.stage(delta, live, manifest=manifest(folder, 0))
    assert memories(live) == before
    for call in calls:
        if call in ("apply", "undo"):
            getattr(patch, call)()
        else:
            for write in patch._writes[:: 2 if call == "some" else 3]:
                half = len(write.old) // 2
                left = write if write.positions is None else replace(write, positions=write.positions[:half])
                left.part[: len(left.part)].copy_(write.new) if write.positions is None else left.put(write.new[:half])
    patch.apply()
    patch.apply()

    assert same(live, new)
    assert patch.confirm().root == manifest(folder, 1).root

    patch.undo()
    patch.undo()

    assert memories(live) == before  # of what lies between the tensors, too
    assert patch.confirm().root == manifest(folder, 0).root


def bit_patterns(name: str) -> torch.Tensor:
    """Elements of a dtype: all zeros, the sign alone, infinities and NaNs with payloads, and random bits."""
    dtype = getattr(torch, name)
    data = torch.randint(0, 2 if name == "bool" else 256, (64 * dtype.itemsize,), dtype=torch.uint8)
    if name != "bool":
        data[: 4 * dtype.itemsize] = 0
        data[dtype.itemsize : 2 * dtype.itemsize] = 0x80
        data[2 * dtype.itemsize : 4 * dtype.itemsize] = 0xFF
    return data.view(dtype)


@pytest.mark.parametrize("name", DTYPES)
def test_bits_are_moved_and_never_floats(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {"w": bit_patterns(name)}
    new = with_bytes(old, lambda data: data[::-1])
    (delta,) = deltas_of(tmp_path, old, new)
    live = copy_of(old)

    patch = ckpt.stage(delta, live, manifest=manifest(tmp_path, 0))
    patch.apply()

    assert memories(live).popitem()[1] == memories(new).popitem()[1]
    patch.undo()
    assert memories(live).popitem()[1] == memories(old).popitem()[1]


def test_minus_zero_and_the_payload_of_a_nan_arrive(tmp_path: Path) -> None:
    old = torch.zeros(1000)
    new = old.clone()
    new[10] = -0.0
    new.view(torch.int32)[20] = 0x7FC0_0123
    (delta,) = deltas_of(tmp_path, {"w": old}, {"w": new})
    live = {"w": old.clone()}

    ckpt.stage(delta, live, manifest=manifest(tmp_path, 0)).apply()

    assert live["w"].view(torch.int32).nonzero().flatten().tolist() == [10, 20]
    assert same(live, {"w": new})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return several_on_disk(tmp_path_factory.mktemp("several"))


@pytest.mark.parametrize("threads", [1, 3, None])
def test_several_chunks_go_there_and_back(pair: Path, threads: int | None) -> None:
    live = live_at(pair, 0)
    before, places = memories(live), {name: tensor.data_ptr() for name, tensor in live.items()}

    patch = ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0), trust=trusting(OLD, line="mnist"))
    patch.apply(threads=threads)

    assert same(live, ckpt.load(pair / "1"))
    assert {name: tensor.data_ptr() for name, tensor in live.items()} == places
    patch.undo(threads=threads)
    assert memories(live) == before


def test_patches_follow_each_other_and_are_undone_in_turn(pair: Path) -> None:
    live = live_at(pair, 0)

    first = ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))
    first.apply()
    second = ckpt.stage(pair / "delta-2", live, manifest=first.target)
    second.apply()

    assert same(live, ckpt.load(pair / "2"))
    second.undo()
    first.undo()
    assert same(live, ckpt.load(pair / "0"))


def test_rows_that_moved_are_read_in_shared_memory_that_stays(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = torch.randn(20_000, 32)
    (delta,) = deltas_of(tmp_path, {"w": rows}, {"w": torch.cat([rows[7000:], torch.randn(9, 32), rows[9:7000]])})
    memory = mmap.mmap(-1, rows.nbytes)
    live = {"w": torch.frombuffer(memory, dtype=torch.float32).view(rows.shape)}
    live["w"].copy_(rows)

    patch = ckpt.stage(delta, live, manifest=manifest(tmp_path, 0))

    assert "moved" in {frame.codec for frame in ckpt.read_delta(delta).frames()}
    assert torch.equal(live["w"], rows)
    patch.apply()
    assert same(live, ckpt.load(tmp_path / "1"))


def test_gaps_between_tensors_belong_to_others(tmp_path: Path) -> None:
    old, new = {"w": torch.zeros(50)[::2]}, {"w": torch.ones(50)[::2]}
    (delta,) = deltas_of(tmp_path, old, new)
    buffer = torch.full((50,), 7.0)
    buffer[::2] = 0

    ckpt.stage(delta, {"w": buffer[::2]}, manifest=manifest(tmp_path, 0)).apply()

    assert buffer.tolist() == [1.0, 7.0] * 25


def test_arrays_are_memory_too_and_unsigned_ones_stand_for_what_numpy_lacks(tmp_path: Path) -> None:
    old = {"w": torch.randn(100).bfloat16(), "n": torch.arange(10)}
    new = {"w": old["w"] * 2, "n": old["n"] + 1}
    (delta,) = deltas_of(tmp_path, old, new)
    live = {"w": old["w"].view(torch.uint16).numpy().copy(), "n": old["n"].numpy().copy()}

    ckpt.stage(delta, live, manifest=manifest(tmp_path, 0)).apply()

    assert live["w"].tobytes() == new["w"].view(torch.uint16).numpy().tobytes()
    assert live["n"].tolist() == new["n"].tolist()


def test_a_module_s_parameters_are_written_where_they_are(tmp_path: Path) -> None:
    model, other = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20)
    (delta,) = deltas_of(tmp_path, model.state_dict(), other.state_dict())

    ckpt.stage(delta, dict(model.named_parameters()), manifest=manifest(tmp_path, 0)).apply()

    assert same(dict(model.state_dict()), dict(other.state_dict()))


@pytest.mark.parametrize(("changed", "kept_bytes"), [(1, 8), (2, 16), (3, 20), (5, 20)])
def test_the_smaller_form_is_kept(changed: int, kept_bytes: int, tmp_path: Path) -> None:
    fifths = 300_000
    old = torch.zeros(5 * fifths, dtype=torch.bfloat16)
    new = old.clone()
    new.view(fifths, 5)[:, :changed] = 1
    (delta,) = deltas_of(tmp_path, {"w": old}, {"w": new})

    patch = ckpt.stage(delta, {"w": old}, manifest=manifest(tmp_path, 0))

    assert patch.size_bytes == fifths * kept_bytes


def test_on_a_device_a_storage_is_written_by_one_call(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(writes._CHANGES_PER_CALL, "cpu", 1 << 62)
    live = live_at(pair, 0)

    patch = ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))
    patch.apply()

    (number,) = (record.storage for name, record in manifest(pair, 0).by_name.items() if name == "sparse")
    assert [write.storage for write in patch._writes].count(number) == 1
    assert same(live, ckpt.load(pair / "1"))


@pytest.mark.parametrize("staging", [True, False])
def test_inference_mode_is_not_asked_for_and_does_no_harm(staging: bool, tmp_path: Path) -> None:
    with torch.inference_mode():
        live = {"w": torch.zeros(100), "p": torch.zeros(4, 5).T}
    (delta,) = deltas_of(tmp_path, live, {"w": torch.ones(100), "p": torch.ones(4, 5).T})

    with torch.inference_mode(staging):
        patch = ckpt.stage(delta, live, manifest=manifest(tmp_path, 0))
    with torch.inference_mode(not staging):
        patch.apply()

    assert same(live, ckpt.load(tmp_path / "1"))


def test_threads_are_at_least_one(pair: Path) -> None:
    live = live_at(pair, 0)
    patch = ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))

    with untouched(live), pytest.raises(ValueError, match="threads is -1; expected at least 1"):
        patch.apply(threads=-1)


def test_a_delta_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    (delta,) = deltas_of(tmp_path, {"w": torch.ones(5), "step": 1}, {"w": torch.ones(5), "step": 2})
    live = {"w": torch.ones(5)}

    patch = ckpt.stage(delta, live, manifest=manifest(tmp_path, 0))
    patch.apply()

    assert patch.size_bytes == 0
    assert patch.confirm().root == manifest(tmp_path, 1).root


# --- refused, and nothing was written ---------------------------------------------------------------------------------


def test_the_wrong_order_is_refused_by_root(pair: Path) -> None:
    live = live_at(pair, 0)

    with untouched(live), pytest.raises(ckpt.WrongBaseError) as caught:
        ckpt.stage(pair / "delta-2", live, manifest=manifest(pair, 0))

    assert caught.value.expected == manifest(pair, 1).root


def test_memory_that_holds_another_state_is_refused_by_chunk(pair: Path) -> None:
    live = live_at(pair, 0)
    live["sparse"][2_000_000] += 1

    with untouched(live), pytest.raises(ckpt.CorruptChunkError) as caught:
        ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))

    assert isinstance(caught.value, ckpt.LiveChunkError)
    assert (caught.value.owner, caught.value.chunk) == ("the storage of 'sparse'", 3)
    assert caught.value.root == manifest(pair, 0).root
    assert "this call wrote nothing" in str(caught.value)


def test_memory_that_is_half_written_is_not_staged_again(pair: Path) -> None:
    live = live_at(pair, 0)
    patch = ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))
    patch._writes[0].put(patch._writes[0].new)

    with untouched(live), pytest.raises(ckpt.LiveChunkError, match=r"ckpt.staged\(RECORD, tensors\)"):
        ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))


def test_what_nobody_trusted_has_signed_is_refused(pair: Path) -> None:
    live = live_at(pair, 0)

    with untouched(live), pytest.raises(ckpt.UntrustedKeyError):
        ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0), trust=trusting(FOREIGN))


def test_a_flipped_bit_of_any_frame_is_refused(pair: Path, tmp_path: Path) -> None:
    frames = ckpt.read_delta(pair / "delta-1").frames()
    live = live_at(pair, 0)
    for frame in frames:
        delta = copied(pair / "delta-1", tmp_path / f"{frame.patch_offset}")
        file = delta / "patch-00001.bin"
        data = bytearray(file.read_bytes())
        data[frame.patch_offset + frame.encoded_size // 2] ^= 1
        file.write_bytes(data)

        with untouched(live), pytest.raises(ckpt.CorruptFrameError, match=f"frame at byte {frame.patch_offset} of"):
            ckpt.stage(delta, live, manifest=manifest(pair, 0))


def test_a_frame_that_makes_something_else_is_refused_by_the_target_s_digest(tmp_path: Path) -> None:
    old, new = torch.zeros(100, dtype=torch.uint8), torch.randint(0, 256, (100,), dtype=torch.uint8)
    ckpt.save({"w": old}, tmp_path / "0")
    ckpt.save({"w": new}, tmp_path / "1")
    ckpt.diff(tmp_path / "0", tmp_path / "1", tmp_path / "delta", codecs=["raw"])
    file = tmp_path / "delta" / "patch-00001.bin"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)

    def lie(message: Any) -> None:
        message.storages[0].frames[0].sha256 = sha256(bytes(data))

    rewrite_delta(tmp_path / "delta", lie)
    live = {"w": old.clone()}

    with untouched(live), pytest.raises(ckpt.CorruptFrameError, match="what makes chunk 0 of the storage of 'w'"):
        ckpt.stage(tmp_path / "delta", live, manifest=manifest(tmp_path, 0))


def test_bytes_that_no_tensor_covers_are_not_written_whatever_a_delta_says(tmp_path: Path) -> None:
    old, new = {"w": torch.zeros(50)[::2], "v": torch.zeros(3)}, {"w": torch.ones(50)[::2], "v": torch.ones(3)}
    (delta,) = deltas_of(tmp_path, old, new)
    live = copy_of(old)
    storage = live_storages(manifest(tmp_path, 0), live)[1]

    lying = np.zeros(49, np.float32)
    lying[1] = 5  # in a gap

    with pytest.raises(ValueError, match="bytes change that no tensor covers"):
        writes.change_between(storage, 0, storage[:], memoryview(lying.tobytes()))
    assert ckpt.stage(delta, live, manifest=manifest(tmp_path, 0)).size_bytes > 0


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ({"w": torch.ones(5)}, "'w' as .*shape=.5,"),
        ({"w": torch.ones(4).double()}, "'w' as .*dtype='float64'"),
        ({"w": torch.ones(4), "v": torch.ones(1)}, "tensor 'v', which comes"),
        ({"v": torch.ones(4)}, "tensor 'w', which goes"),
    ],
)
def test_other_tables_are_refused_with_the_way_out(new: State, found: str, tmp_path: Path) -> None:
    (delta,) = deltas_of(tmp_path, {"w": torch.zeros(4)}, new)
    live = {"w": torch.zeros(4)}

    with untouched(live), pytest.raises(ckpt.NotInPlaceError, match=found) as caught:
        ckpt.stage(delta, live, manifest=manifest(tmp_path, 0))

    assert "Apply it to a folder with ckpt.apply" in str(caught.value)


def read_only_tensor() -> torch.Tensor:
    memory = mmap.mmap(-1, 24, prot=mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.frombuffer(memory, dtype=torch.float32).view(2, 3)


def read_only_array() -> np.ndarray[Any, Any]:
    array = np.zeros((2, 3), np.float32)
    array.flags.writeable = False
    return array


LIVE: dict[str, tuple[Callable[[], object], str]] = {
    "missing": (lambda: None, "is missing, expected a tensor or an array of float32"),
    "a list": (lambda: [[0.0] * 3] * 2, "is a list"),
    "dtype": (lambda: torch.zeros(2, 3).half(), "of dtype float16, expected dtype float32"),
    "shape": (lambda: torch.zeros(3, 2), r"of shape \(3, 2\), expected shape \(2, 3\)"),
    "strides": (lambda: torch.zeros(3, 2).T, r"of strides \(1, 2\), expected strides \(3, 1\)"),
    "conjugate": (lambda: torch.zeros(2, 3, dtype=torch.complex64).conj(), "conjugated or negated"),
    "read only": (read_only_tensor, "in memory that is read only"),
    "array, read only": (read_only_array, "an array that is read only"),
    "array, turned": (lambda: np.zeros((2, 3), np.float32)[::-1], "an array that torch cannot share"),
    "array, other bytes first": (lambda: np.zeros((2, 3), ">f4"), "an array that torch cannot share"),
    "signed array": (lambda: np.zeros((2, 3), np.int32), "of dtype int32, expected dtype float32"),
}


@pytest.mark.parametrize("case", LIVE)
def test_memory_that_lies_otherwise_is_refused_by_name(case: str, tmp_path: Path) -> None:
    make, found = LIVE[case]
    old = {"a": torch.zeros(9), "w": torch.zeros(2, 3)}
    (delta,) = deltas_of(tmp_path, old, {name: tensor + 1 for name, tensor in old.items()})
    live = {"a": torch.zeros(9), "w": make()}

    with pytest.raises(ckpt.LiveMemoryError, match=found) as caught:
        ckpt.stage(delta, live, manifest=manifest(tmp_path, 0))  # type: ignore[arg-type]

    assert caught.value.name == "w"
    assert not live["a"].any()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ties", ["none", "others", "overlapping"])
def test_tensors_are_tied_as_in_the_checkpoint_or_refused(ties: str, tmp_path: Path) -> None:
    one, two = torch.zeros(8), torch.zeros(8)
    (delta,) = deltas_of(tmp_path, *({"a": one + n, "b": (both := two + n), "c": both} for n in range(2)))
    live = {
        "none": {"a": one, "b": two.clone(), "c": two},
        "others": {"a": one, "b": two, "c": one},
        "overlapping": {"a": (long := torch.zeros(12))[4:], "b": (part := long[:8]), "c": part},
    }[ties]

    with untouched(live), pytest.raises(ckpt.LiveMemoryError, match="memory shared by the same tensors"):
        ckpt.stage(delta, live, manifest=manifest(tmp_path, 0))


def test_tensors_in_pieces_are_refused(tmp_path: Path) -> None:
    boxes = {"w": rows((4, 3), 2)}
    for number in range(2):
        save_in_pieces({"w": torch.full((4, 3), float(number))}, tmp_path / f"{number}", boxes)
    ckpt.diff(tmp_path / "0", tmp_path / "1", tmp_path / "delta")
    live = {"w": torch.zeros(4, 3)}

    with untouched(live), pytest.raises(ckpt.NotInPlaceError, match=r"tensors in pieces.*ckpt\.consolidate"):
        ckpt.stage(tmp_path / "delta", live, manifest=manifest(tmp_path, 0))


def test_confirming_finds_what_was_changed_behind_its_back(pair: Path) -> None:
    live = live_at(pair, 0)
    patch = ckpt.stage(pair / "delta-1", live, manifest=manifest(pair, 0))
    patch.apply()
    live["same"][3] += 1  # no frame touches it

    with untouched(live), pytest.raises(ckpt.LiveChunkError, match="chunk 0 of the storage of 'same'"):
        patch.confirm()
