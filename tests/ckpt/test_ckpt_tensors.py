"""Tensors of odd kinds and layouts: kept bit for bit, or refused with the remedy."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from safetensors import safe_open

import ckpt
from ckpt.format.dtypes import BY_NAME, NARROW, torch_dtype
from ckpt.format.entries import named
from ckpt.format.records import (
    TensorRecord,
    contiguous_strides,
    extent,
    is_dense,
    is_permuted,
    normal_strides,
    overlaps,
)
from ckpt.saving import memory
from tests.ckpt.equality import same
from tests.ckpt.strategies import states

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


class Tagged(torch.Tensor):
    """A subclass with a meaning of its own."""


def _released() -> torch.Tensor:
    tensor = torch.ones(100)
    tensor.untyped_storage().resize_(0)
    return tensor


def _cut() -> torch.Tensor:
    tensor = torch.ones(100)
    tensor.untyped_storage().resize_(200)
    return tensor


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_released, "memory was released"),
        (_cut, "memory was released"),
        (lambda: torch._efficientzerotensor(3), "a symbolic zero tensor"),
        (lambda: torch.ones(3).as_subclass(Tagged), "a tensor subclass Tagged"),
        (lambda: torch.nn.UninitializedParameter(), "a tensor subclass UninitializedParameter"),
        (lambda: torch.ones(3).to_sparse(), "a tensor of layout torch.sparse_coo"),
        (lambda: np.ma.masked_array([1.0], mask=[True]), "a MaskedArray"),
        (lambda: np.matrix([[1.0]]), "a matrix"),
        (lambda: np.array([1.0], dtype=">f8"), "an array of dtype >f8"),
        (lambda: np.zeros(2, dtype="f4,u1")["f0"], r"strides \(5,\)"),
        (lambda: np.arange(3.0)[::-1], r"strides \(-8,\)"),
        (lambda: np.longdouble(1), "a NumPy scalar"),
        (lambda: "\ud800", "a lone surrogate"),
    ],
)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_what_has_no_faithful_form_is_refused(make: Callable[[], object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ckpt.UnsupportedStateError, match=message):
        ckpt.save({"x": make()}, tmp_path / "c")

    assert list(tmp_path.iterdir()) == []


def test_a_key_with_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ckpt.UnsupportedStateError, match="a lone surrogate"):
        ckpt.save({"\udc80": torch.ones(1)}, tmp_path / "c")


def test_gradients_and_buffers_come_back_as_leaves(tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    state = {"leaf": weight, "inner": weight * 2, "buffer": torch.nn.Buffer(torch.ones(2)), "frozen": weight.detach()}

    ckpt.save(state, tmp_path / "c")
    loaded = ckpt.load(tmp_path / "c")

    assert [loaded[name].requires_grad for name in state] == [True, True, False, False]
    assert all(tensor.is_leaf for tensor in loaded.values())
    assert loaded["inner"].tolist() == [2, 2, 2]


def test_every_dtype_of_torch_that_a_plain_tensor_can_have_is_in_the_table() -> None:
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    with pytest.warns(UserWarning, match="quantized tensor"):  # they have scales beside their bytes
        plain = {dtype for dtype in dtypes if not torch.empty(0, dtype=dtype).is_quantized}

    assert {torch_dtype(name) for name in BY_NAME} == plain
    assert all(torch_dtype(name).itemsize == row.size_bytes for name, row in BY_NAME.items())


def narrow(shift: int) -> dict[str, torch.Tensor]:
    """A tensor of each dtype of less than 8 bits, with any bits."""
    values = (torch.arange(6000) * 7 + shift).to(torch.uint8).reshape(60, 100)
    return {name: (values + index).view(torch_dtype(name)) for index, name in enumerate(NARROW)}


def test_integers_of_less_than_8_bits_keep_all_of_their_bytes(tmp_path: Path) -> None:
    base, target = narrow(0), narrow(1)
    views = {"turned": base["int4"].t(), "gaps": narrow(2)["uint7"][:, ::3], "alone": narrow(3)["int3"].t()}
    state = base | views | {"frozen": torch.nn.Parameter(base["uint4"], requires_grad=False), "dtype": torch.int1}

    saved = ckpt.save(state, tmp_path / "c")
    waited = ckpt.save_async(state, tmp_path / "async").result()
    ckpt.save(base, tmp_path / "base")
    ckpt.save(target, tmp_path / "target")
    ckpt.diff(tmp_path / "base", tmp_path / "target", tmp_path / "delta")
    ckpt.apply(tmp_path / "base", tmp_path / "delta", tmp_path / "applied")

    assert waited.root == saved.root
    assert same(ckpt.load(tmp_path / "c"), state)
    assert same(ckpt.load(tmp_path / "c", mmap=False), state)
    assert same(ckpt.load(tmp_path / "applied"), target)
    with ckpt.open(tmp_path / "c") as checkpoint:
        assert same(checkpoint.slice("uint1", 3), base["uint1"][3])


class Narrow(torch.nn.Module):
    """Buffers and a parameter of less than 8 bits beside one that torch copies."""

    def __init__(self, values: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_buffer(name, value)
        self.weight = torch.nn.Parameter(values["int4"].t(), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.rand(3))


def test_integers_of_less_than_8_bits_go_into_a_module_in_place(tmp_path: Path) -> None:
    saved, module = Narrow(narrow(0)), Narrow(narrow(1))
    ckpt.save(saved.state_dict(), tmp_path / "c")
    addresses = {name: value.data_ptr() for name, value in module.state_dict().items()}

    ckpt.load_into(module, tmp_path / "c")

    assert same(dict(module.state_dict()), dict(saved.state_dict()))
    assert {name: value.data_ptr() for name, value in module.state_dict().items()} == addresses


def test_an_integer_of_less_than_8_bits_that_meets_another_dtype_is_refused_before_a_copy(tmp_path: Path) -> None:
    saved, module = Narrow(narrow(0)), Narrow(narrow(0) | {"int2": narrow(0)["int2"].view(torch.uint8)})
    ckpt.save(saved.state_dict(), tmp_path / "c")
    before = module.scale.clone()

    with pytest.raises(RuntimeError, match=r"'int2' in .* has the dtype torch.int2, the module expects torch.uint8"):
        ckpt.load_into(module, tmp_path / "c")

    assert torch.equal(module.scale, before)


def test_views_of_mixed_dtypes_share_bytes_again(tmp_path: Path) -> None:
    raw = torch.arange(64, dtype=torch.uint8)
    state = {"bytes": raw[3:40], "words": raw[8:32].view(torch.int32), "wide": raw[16:32].view(torch.float64)}

    ckpt.save(state, tmp_path / "c")
    loaded = ckpt.load(tmp_path / "c")
    loaded["words"][2] = -1

    assert loaded["bytes"][13:17].tolist() == [255] * 4
    assert loaded["wide"].view(torch.uint8)[:4].tolist() == [255] * 4
    assert ckpt.save(ckpt.load(tmp_path / "c"), tmp_path / "again").root == ckpt.read_manifest(tmp_path / "c").root


def test_the_bytes_of_a_bool_are_kept(tmp_path: Path) -> None:
    state = {"x": torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)}

    ckpt.save(state, tmp_path / "c")

    assert ckpt.load(tmp_path / "c")["x"].view(torch.uint8).tolist() == [0, 1, 2, 255]


@pytest.mark.parametrize("block_bytes", [16, 48, 1 << 20])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(1, 5), max_size=4),
    strides=st.lists(st.integers(0, 13), min_size=4, max_size=4),
    dtype=st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.complex128]),
)
def test_a_view_is_gathered_whatever_the_blocks(
    shape: list[int], strides: list[int], dtype: torch.dtype, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "BLOCK_BYTES", block_bytes)
    values = torch.arange(1, 1 + 256 * dtype.itemsize, dtype=torch.int64).to(torch.uint8).view(dtype)
    view = values.as_strided(shape, strides[: len(shape)])
    (record,), (source,) = memory.collect({"x": view})
    gathered = torch.frombuffer(bytearray(b"".join(map(bytes, source.blocks()))), dtype=torch.uint8)

    stored = record.strides if not is_permuted(record, 1) else contiguous_strides(shape)
    again = gathered.view(dtype).as_strided(shape, stored)

    plain = torch.contiguous_format
    assert same(again.clone(memory_format=plain), view.clone(memory_format=plain))
    covered = set(torch.arange(256).as_strided(shape, stored).flatten().tolist())
    elements = gathered.view(-1, dtype.itemsize)
    assert all(not elements[index].any() for index in range(len(elements)) if index not in covered)


def test_a_permuted_tensor_is_streamed_in_row_major_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_PIECE_BYTES", 64)
    tensor = torch.arange(2 * 3 * 5 * 7.0).reshape(2, 3, 5, 7).to(memory_format=torch.channels_last)

    _, (source,) = memory.collect({"x": tensor})

    assert b"".join(source.blocks()) == tensor.contiguous().numpy().tobytes()


def test_sizes_beyond_31_and_32_bits_are_plain_integers() -> None:
    shape, strides = (3, 2**31 + 1, 5), (2 * 5 * (2**31 + 1), 5, 1)
    record = TensorRecord(name="x", dtype="float32", shape=shape, strides=strides, offset=2**40, storage=0)

    assert record.size_bytes == 4 * 3 * (2**31 + 1) * 5
    assert record.extent_bytes == 4 * (2 * strides[0] + 5 * (2**31 + 1))
    assert extent((2**40,), (0,)) == 1
    assert not is_dense(shape, strides)
    assert not overlaps(shape, strides)
    assert overlaps((2**40, 2), (1, 1))
    assert normal_strides((1, 2**40), (7, 1)) == (2**40, 1)


def test_many_views_of_one_storage_are_named_once_each() -> None:
    """DeepSpeed's layout: every tensor a view of one flat buffer; and every second one a twin of the one before."""
    views = [
        TensorRecord(name=f"v{index}", dtype="float32", shape=(4,), strides=(1,), offset=16 * (index // 2), storage=0)
        for index in range(20_000)
    ]

    kept = named(views, 16 * 10_000)

    assert [view.name for view in kept] == [f"v{index}" for index in range(0, 20_000, 2)]
    assert all(first.offset + 16 == second.offset for first, second in pairwise(kept))


def view(index: int, start: int, size: int) -> TensorRecord:
    return TensorRecord(name=f"v{index}", dtype="uint8", shape=(size,), strides=(1,), offset=start, storage=0)


def disjoint_by_definition(views: Sequence[TensorRecord]) -> list[TensorRecord]:
    """Each one against all that were taken before it."""
    taken: list[TensorRecord] = []
    for new in views:
        new_end = new.offset + new.size_bytes
        if all(new_end <= old.offset or old.offset + old.size_bytes <= new.offset for old in taken):
            taken.append(new)
    return sorted(taken, key=lambda record: record.offset)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1), st.randoms())
def test_of_overlapping_views_those_are_named_that_were_there_first(
    spans: list[tuple[int, int]], random: Random
) -> None:
    """Beside views drawn at will, some that tile the storage, in any order: they alone may be named in its place."""
    size = max(start + length for start, length in spans)
    spans += [(start, min(3, size - start)) for start in range(0, size, 3)]
    random.shuffle(spans)
    views = [view(index, *span) for index, span in enumerate(spans)]

    kept = named(views, size)

    taken = disjoint_by_definition(views)
    alone = next(((record,) for record in views if record.size_bytes == size), ())
    assert kept == (tuple(taken) if sum(record.size_bytes for record in taken) == size else alone)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(state=states, shard_bytes=st.sampled_from([1, 1 << 30]))
def test_safetensors_own_reader_sees_every_named_tensor(
    state: object, shard_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("named") / "c"
    try:
        ckpt.save(state, folder, shard_bytes=shard_bytes)
    except ckpt.UnsupportedStateError:
        reject()

    with ckpt.open(folder) as checkpoint:
        for file in folder.glob("weights-*"):
            with safe_open(file, "pt") as reader:
                for name in reader.keys():  # noqa: SIM118  (no mapping)
                    assert same(reader.get_tensor(name), checkpoint[name].contiguous())
                assert set(reader.metadata()) - {"format"} <= set(checkpoint)
        for file in folder.glob("extra-*"):
            with safe_open(file, "pt") as reader:
                assert all(name.startswith("storage-") for name in reader.keys())  # noqa: SIM118
        kept = [record for record in checkpoint.manifest.tensors if record.is_contiguous]
        assert all(BY_NAME[record.dtype] for record in kept)
