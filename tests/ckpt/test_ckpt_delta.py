"""apply(base, diff(base, target)) is the target, and anything else is refused with nothing changed."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import ckpt
from ckpt.deltas.codecs import CODECS, codec
from tests.ckpt.chains import ADDING
from tests.ckpt.equality import same
from tests.ckpt.strategies import states

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=states, new=states)
def test_any_state_becomes_any_other(old: object, new: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("pair")
    try:
        ckpt.save({"s": old}, folder / "old")
        target = ckpt.save({"s": new}, folder / "new")
    except ckpt.UnsupportedStateError:
        reject()

    ckpt.diff(folder / "old", folder / "new", folder / "delta")
    made = ckpt.apply(folder / "old", folder / "delta", folder / "made")

    assert made.seal == target.seal
    assert same(ckpt.load(folder / "made", verify="sha256"), {"s": new})


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_codec_gives_the_bytes_back(name: str, width: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 700))
    seed = np.random.default_rng(data.draw(st.integers(0, 1000)))
    base = seed.integers(0, 256, count * width, np.uint8)
    target = base.copy()
    changed = seed.random(count * width) < data.draw(st.sampled_from([0.0, 0.002, 0.3, 1.0]))
    target[changed] = seed.integers(0, 256, int(changed.sum()), np.uint8)
    one = codec(name)

    encoded = one.encode(base.data, target.data, width=width)

    assert bytes(one.decode(base.data, memoryview(encoded), width=width, size=target.nbytes)) == target.tobytes()


@pytest.mark.parametrize(("share", "chosen"), [(0.7, "planes"), (0.1, "sparse")])
def test_sparse_is_taken_where_it_is_much_smaller_than_planes(share: float, chosen: str, tmp_path: Path) -> None:
    """Where most changed it wins samples by less than 5 %, and whole frames by nothing."""
    seed = np.random.default_rng(0)
    base = (seed.standard_normal(1 << 19, np.float32) * 0.02).view(np.uint32) >> 16
    steps = np.where(seed.random(1 << 19) < share, seed.choice([1, 0xFFFF], 1 << 19), 0)
    old, new = base.astype(np.uint16), (base + steps).astype(np.uint16)
    for half, state in (("old", old), ("new", new)):
        ckpt.save({"w": torch.from_numpy(state).view(torch.bfloat16)}, tmp_path / half)

    made = ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "delta", codecs=("sparse", "planes"))

    sizes = {name: len(codec(name).encode(old.data.cast("B"), new.data.cast("B"), width=2)) for name in ADDING}
    assert (sizes["planes"] <= 1.05 * sizes["sparse"]) == (chosen == "planes")
    assert {frame.codec for frame in made.frames()} == {chosen}


@pytest.mark.parametrize(("share", "above_the_bound"), [(0.001, 0.10), (0.01, 0.05), (0.1, 0.05)])
def test_few_changes_by_a_unit_cost_hardly_more_than_any_coder_without_context(
    share: float, above_the_bound: float
) -> None:
    """Which is the entropy of where, and a bit for each sign."""
    random = np.random.default_rng(0)
    old = random.integers(0, 1 << 16, 1 << 22).astype(np.uint16)
    new = old.copy()
    changed = random.random(len(old)) < share
    new[changed] += random.choice(np.array([1, 0xFFFF], np.uint16), int(changed.sum()))

    encoded = codec("sparse").encode(old.data.cast("B"), new.data.cast("B"), width=2)

    where = -(share * math.log2(share) + (1 - share) * math.log2(1 - share))
    assert len(encoded) * 8 <= len(old) * (where + share) * (1 + above_the_bound)


@pytest.mark.parametrize("places", [[], [0], [4_999_999], [7, 4_000_000, 4_000_001]])
@pytest.mark.parametrize("change", [1, 1 << 15, 0xFFFF])
def test_changes_however_far_apart_and_large_come_back(places: list[int], change: int) -> None:
    old = np.arange(5_000_000, dtype=np.uint16)
    new = old.copy()
    new[places] += np.uint16(change)

    encoded = codec("sparse").encode(old.data.cast("B"), new.data.cast("B"), width=2)
    made = codec("sparse").decode(old.data.cast("B"), memoryview(encoded), width=2, size=old.nbytes)

    assert made == new.tobytes()


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=150, deadline=None)
@given(junk=st.binary(max_size=200), flips=st.lists(st.integers(0, 10**6), max_size=4))
def test_a_decoder_refuses_or_answers_within_its_size(name: str, junk: bytes, flips: list[int]) -> None:
    base = bytes(range(256)) * 4
    one = codec(name)
    damaged = bytearray(one.encode(memoryview(base), memoryview(base[::-1]), width=2))
    for flip in flips:
        damaged[flip % len(damaged)] ^= 1 + flip % 255

    for encoded in (junk, bytes(damaged)):
        try:
            decoded = one.decode(memoryview(base), memoryview(encoded), width=2, size=len(base))
        except ValueError:
            continue
        assert len(decoded) == len(base)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """old → new: sparse bf16 changes, dense float changes, a grown table, a new and a dropped tensor, attachments."""
    torch.manual_seed(0)
    old = {
        "sparse": torch.randn(300_000).bfloat16(),
        "dense": torch.randn(1000),
        "same": torch.randn(100_000),
        "table": torch.randn(50, 16),
        "dropped": torch.randn(5),
    }
    new = {name: tensor.clone() for name, tensor in old.items() if name != "dropped"}
    new["sparse"].view(torch.int16)[torch.rand(300_000) < 0.01] += 1
    new["dense"] *= 1.0001
    new["table"] = torch.cat([old["table"][:20], torch.randn(2, 16), old["table"][20:]])
    new["renamed"] = new.pop("same")
    new["new"] = torch.randn(7)
    for name, text in (("v1", "tokens\n" * 900), ("v2", "tokens\n" * 400 + "more\n" + "tokens\n" * 500)):
        (tmp_path / name).write_text(text)
    ckpt.save(old, tmp_path / "old", attachments={"vocab.txt": tmp_path / "v1"})
    ckpt.save(new, tmp_path / "new", attachments={"vocab.txt": tmp_path / "v2"}, metadata={"step": "2"})
    ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "delta", codecs=("sparse", "planes", "bsdiff"))
    return tmp_path


def test_a_delta_is_small_and_exact(pair: Path) -> None:
    delta = ckpt.read_delta(pair / "delta")

    made = ckpt.apply(pair / "old", pair / "delta", pair / "made")

    assert made.seal == ckpt.read_manifest(pair / "new").seal
    assert {frame.codec for frame in delta.frames()} == {"sparse", "planes", "bsdiff", "raw"}
    assert delta.size_bytes < ckpt.read_manifest(pair / "new").payload_bytes / 40
    assert delta.size_bytes == sum(file.stat().st_size for file in (pair / "delta").iterdir())
    assert (pair / "made" / "vocab.txt").read_bytes() == (pair / "v2").read_bytes()


def test_the_same_pair_gives_the_same_bytes(pair: Path) -> None:
    for name in ("by-context", "again"):
        ckpt.diff(pair / "old", pair / "new", pair / name)

    assert {"contextual"} < {frame.codec for frame in ckpt.read_delta(pair / "again").frames()}
    for file in (pair / "by-context").iterdir():
        assert (pair / "again" / file.name).read_bytes() == file.read_bytes()


NEW: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
    "bytes": lambda: {"w": torch.randint(0, 256, (5_000_000,), dtype=torch.uint8)},
    "floats": lambda: {"w": torch.randn(1_000_000)},
    "small tensors": lambda: {f"{n}": torch.randint(0, 256, (1024,), dtype=torch.uint8) for n in range(300)},
    "tiny tensors": lambda: {f"{n}": torch.randint(0, 256, (3,), dtype=torch.uint8) for n in range(300)},
}


@pytest.mark.parametrize("kind", NEW)
def test_halves_with_nothing_in_common_cost_no_more_than_a_copy(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    for half in ("old", "new"):
        ckpt.save(NEW[kind](), tmp_path / half)

    ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "delta")

    copy, delta = (sum(file.stat().st_size for file in (tmp_path / it).iterdir()) for it in ("new", "delta"))
    assert delta <= 1.001 * copy


def test_a_state_that_repeats_itself_is_no_bomb(tmp_path: Path) -> None:
    """Its table packs to less than a thousandth, which readers take for one."""
    for half in ("old", "new"):
        ckpt.save({"losses": [0.0] * 20_000}, tmp_path / half)

    ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "delta")

    assert (
        ckpt.apply(tmp_path / "old", tmp_path / "delta", tmp_path / "made").root
        == ckpt.read_manifest(tmp_path / "new").root
    )


def test_nothing_changed_costs_the_manifest_only(pair: Path) -> None:
    delta = ckpt.diff(pair / "old", pair / "old", pair / "none")

    assert delta.frames() == []
    assert ckpt.apply(pair / "old", pair / "none", pair / "made").root == delta.base_root


def test_minus_zero_and_nan_payloads_travel(tmp_path: Path) -> None:
    bits = torch.tensor([0x00000000, 0x7FC00001, 0x7FA00000, 0x3F800000], dtype=torch.int32)
    ckpt.save({"w": torch.zeros(4)}, tmp_path / "old")
    ckpt.save(
        {"w": (bits + torch.tensor([-(2**31), 0, 1, 0], dtype=torch.int32)).view(torch.float32)}, tmp_path / "new"
    )

    ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "d")
    ckpt.apply(tmp_path / "old", tmp_path / "d", tmp_path / "made")

    assert ckpt.load(tmp_path / "made")["w"].view(torch.int32)[0] == -(2**31)
    assert ckpt.read_manifest(tmp_path / "made").root == ckpt.read_manifest(tmp_path / "new").root


def test_a_wrong_base_is_refused_by_root(pair: Path) -> None:
    with pytest.raises(ckpt.WrongBaseError) as caught:
        ckpt.apply(pair / "new", pair / "delta", pair / "made")

    assert caught.value.expected == ckpt.read_manifest(pair / "old").root
    assert caught.value.found == ckpt.read_manifest(pair / "new").root
    assert not (pair / "made").exists()


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda folder: _flip(folder / "delta" / "patch-00001.bin", 100), ckpt.CorruptFrameError),
        (lambda folder: os.truncate(folder / "delta" / "patch-00001.bin", 100), ckpt.CorruptFrameError),
        (lambda folder: (folder / "delta" / "patch-00001.bin").unlink(), ckpt.CorruptFrameError),
        (lambda folder: _flip(folder / "delta" / "delta.pb", 100), ckpt.FormatError),
        (lambda folder: os.truncate(folder / "delta" / "delta.pb", 100), ckpt.FormatError),
        (lambda folder: (folder / "delta" / "delta.pb").unlink(), ckpt.NotACheckpointError),
        (lambda folder: _flip(next((folder / "old").glob("weights-*")), 5000), ckpt.CorruptFrameError),
        (lambda folder: _flip(folder / "old" / "manifest.pb", 100), ckpt.FormatError),
    ],
)
def test_damage_is_refused_and_nothing_appears(
    damage: Callable[[Path], None], error: type[Exception], pair: Path
) -> None:
    damage(pair)
    before = sorted(path.name for path in pair.iterdir())

    with pytest.raises(error):
        ckpt.apply(pair / "old", pair / "delta", pair / "made")

    assert sorted(path.name for path in pair.iterdir()) == before


def test_every_byte_of_delta_pb_is_under_its_checksum(pair: Path) -> None:
    data = (pair / "delta" / "delta.pb").read_bytes()
    accepted = []

    for position in range(0, len(data), 7):
        _flip(pair / "delta" / "delta.pb", position)
        try:
            ckpt.read_delta(pair / "delta")
            accepted.append(position)
        except ckpt.FormatError:
            pass
        (pair / "delta" / "delta.pb").write_bytes(data)

    assert accepted == []
