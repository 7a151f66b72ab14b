"""Any chain of deltas equals its squash, with the base and without; what cannot be told is refused by name."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import ckpt
from ckpt.deltas.codecs import CODECS
from ckpt.deltas.squashing import AT_ONCE
from tests.ckpt.chains import ADDING, SIGNER, applied, save_chain, training
from tests.ckpt.signers import FOREIGN, OLD, trusting
from tests.ckpt.strategies import states

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
CHUNK = 1 << 20


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Signed checkpoints 0 … 3, the deltas between them by codecs that add, and what applying all of them makes."""
    folder = tmp_path_factory.mktemp("chain")
    applied(folder, save_chain(folder, training(), codecs=ADDING, sign=True))
    return folder


def deltas(folder: Path) -> list[Path]:
    return sorted(folder.glob("delta-*"))


@pytest.mark.parametrize("base", ["0", None])
def test_a_chain_equals_its_squash(base: str | None, chain: Path, tmp_path: Path) -> None:
    whole = deltas(chain)

    squashed = ckpt.squash(whole, tmp_path / "d", base=None if base is None else chain / base, sign=SIGNER)
    made = ckpt.apply(chain / "0", tmp_path / "d", tmp_path / "made", trust=trusting(OLD, line="mnist"))

    assert made.seal == ckpt.read_manifest(chain / "3").seal
    assert bytes_of(tmp_path / "made") == bytes_of(chain / "applied-2")  # signatures and attachments, too
    assert squashed.sequence == 2
    assert squashed.size_bytes < sum(ckpt.read_delta(delta).size_bytes for delta in whole)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_with_the_base_it_is_the_diff_of_both_ends(tmp_path: Path) -> None:
    states = [{name: state[name] for name in ("sparse", "dense", "table")} for state in training()]
    whole = save_chain(tmp_path, states)
    ckpt.diff(tmp_path / "0", tmp_path / "3", tmp_path / "ends", sequence=2)

    ckpt.squash(whole, tmp_path / "d", base=tmp_path / "0")

    assert bytes_of(tmp_path / "d") == bytes_of(tmp_path / "ends")


def test_one_delta_alone_is_itself(chain: Path, tmp_path: Path) -> None:
    ckpt.squash(deltas(chain)[:1], tmp_path / "d", sign=SIGNER)

    assert bytes_of(tmp_path / "d") == bytes_of(chain / "delta-1")


def test_there_and_back_is_nothing(chain: Path, tmp_path: Path) -> None:
    ckpt.diff(chain / "1", chain / "0", tmp_path / "back", codecs=ADDING)

    both = ckpt.squash([chain / "delta-1", tmp_path / "back"], tmp_path / "d", base=chain / "0")

    assert (both.base_root, both.frames()) == (both.target_root, [])


@pytest.mark.parametrize("codecs", [ADDING, ("contextual",)])
@pytest.mark.parametrize("with_base", [True, False])
def test_a_long_chain_is_squashed_in_parts_of_bounded_memory(
    with_base: bool, codecs: tuple[str, ...], tmp_path: Path
) -> None:
    start = torch.zeros(700_000, dtype=torch.int32)
    states = [{"w": start + (torch.arange(700_000) % (step + 2) == 0) * step} for step in range(3 * AT_ONCE)]
    whole = save_chain(tmp_path, states, codecs=codecs)
    told: list[tuple[int, int]] = []

    base = tmp_path / "0" if with_base else None
    made = ckpt.squash(whole, tmp_path / "d", base=base, progress=lambda *now: told.append(now))

    assert ckpt.apply(tmp_path / "0", tmp_path / "d", tmp_path / "made").seal == made.target_seal
    assert made.target_root == ckpt.read_manifest(tmp_path / f"{len(whole)}").root
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_differences_that_meet_are_added_and_others_go_over_as_they_are(tmp_path: Path) -> None:
    """Of six chunks one changes in both, one in the first and one in the second; nothing of the base is known."""
    old = np.random.default_rng(0).integers(0, 255, 6 * CHUNK, np.uint8)
    one, two = old.copy(), old.copy()
    one[[5, 2 * CHUNK + 5]] += 200
    two[[5, 2 * CHUNK + 5]] += 200
    two[[5, 4 * CHUNK + 5]] += 100
    whole = save_chain(tmp_path, [{"w": each} for each in (old, one, two)], codecs=("sparse",))

    made = ckpt.squash(whole, tmp_path / "d")

    frames = made.storages[0].frames
    assert [(frame.codec, frame.offset // CHUNK, frame.size // CHUNK) for frame in frames] == [
        ("sparse", 0, 1),
        ("sparse", 2, 1),
        ("sparse", 4, 1),
    ]
    assert frames[1].sha256 in {frame.sha256 for frame in ckpt.read_delta(whole[0]).frames()}
    assert ckpt.apply(tmp_path / "0", tmp_path / "d", tmp_path / "made").seal == made.target_seal


def test_what_came_whole_is_known_and_whatever_changes_it_is_decoded(tmp_path: Path) -> None:
    new = torch.randn(600_000)
    whole = save_chain(tmp_path, [{"a": torch.ones(3)}, {"w": new}, {"w": new * 1.001}], codecs=("contextual",))
    assert [frame.codec for frame in ckpt.read_delta(whole[1]).storages[0].frames] == ["contextual"] * 3

    made = ckpt.squash(whole, tmp_path / "d")

    assert [frame.codec for frame in made.storages[0].frames] == ["raw"]
    assert ckpt.apply(tmp_path / "0", tmp_path / "d", tmp_path / "made").seal == made.target_seal


def test_contexts_that_meet_are_chained_or_need_the_base_and_the_frame_is_named(tmp_path: Path) -> None:
    start = torch.randn(600_000)
    whole = save_chain(tmp_path, [{"w": start}, {"w": start * 1.001}, {"w": start * 1.002}], codecs=("contextual",))

    chained = ckpt.squash(whole, tmp_path / "chained")
    with pytest.raises(ckpt.BaseNeededError) as caught:
        ckpt.squash(whole, tmp_path / "d", codecs=("contextual",))

    assert {frame.codec for frame in chained.storages[0].frames} == {"chain"}
    assert ckpt.apply(tmp_path / "0", tmp_path / "chained", tmp_path / "made").seal == chained.target_seal
    assert caught.value.delta == whole[1]
    assert caught.value.expected == ckpt.read_manifest(tmp_path / "0").root
    assert "(by 'contextual') meets what a delta before it changed. Pass base=" in str(caught.value)
    assert not (tmp_path / "d").exists()
    smaller = ckpt.squash(whole, tmp_path / "d", base=tmp_path / "0")
    assert smaller.size_bytes < 0.8 * chained.size_bytes


def _shapes() -> dict[str, list[object]]:
    """Steps of which the last state says less than they do."""
    torch.manual_seed(0)
    dense, table = torch.randn(700_000) * 1e-4, torch.randn(400_000)
    row = torch.randn(384)
    grown, trained = torch.cat([table[:5000], row, table[5000:]]), table * 1.0001
    return {
        "zeros that are trained": [{"a": dense[:9]}, {"m": torch.zeros(700_000)}, {"m": dense}],
        "rows that moved, then trained": [{"e": table}, {"e": grown}, {"e": grown * 1.0001}],
        "trained, then rows that moved": [
            {"e": table},
            {"e": trained},
            {"e": torch.cat([trained[:5000], row, trained[5000:]])},
        ],
    }


@pytest.mark.parametrize("name", _shapes())
@pytest.mark.parametrize("with_base", [True, False])
def test_a_squash_is_no_larger_than_its_parts(with_base: bool, name: str, tmp_path: Path) -> None:
    codecs = [codec for codec in CODECS if codec != "moved"]  # of which one delta of both ends is large
    whole = save_chain(tmp_path, _shapes()[name], codecs=codecs)
    manifest = (whole[-1] / "delta.pb").stat().st_size

    made = ckpt.squash(whole, tmp_path / "d", base=tmp_path / "0" if with_base else None, codecs=codecs)

    assert made.size_bytes <= 1.001 * sum(ckpt.read_delta(delta).size_bytes for delta in whole) + manifest
    assert ckpt.apply(tmp_path / "0", tmp_path / "d", tmp_path / "made").seal == made.target_seal


def test_a_frame_that_is_lost_in_part_is_not_taken_for_whole(tmp_path: Path) -> None:
    """The second delta changes, in one frame, chunks that were as they had been and one that rows were moved into."""
    torch.manual_seed(0)
    table = torch.randn(4000, 384).bfloat16()
    grown = torch.cat([table, torch.randn(100, 384).bfloat16()])
    trained = grown.clone()
    trained.view(torch.int16)[torch.rand(trained.shape) < 0.01] += 1
    whole = save_chain(tmp_path, [{"e": table}, {"e": grown}, {"e": trained}], codecs=("moved", "sparse"))
    assert {frame.codec for frame in ckpt.read_delta(whole[0]).storages[0].frames} == {"moved"}
    assert [frame.codec for frame in ckpt.read_delta(whole[1]).storages[0].frames] == ["sparse"]

    with pytest.raises(ckpt.BaseNeededError):
        ckpt.squash(whole, tmp_path / "d")
    made = ckpt.squash(whole, tmp_path / "d", base=tmp_path / "0")

    assert ckpt.apply(tmp_path / "0", tmp_path / "d", tmp_path / "made").seal == made.target_seal


def test_what_is_cut_off_later_is_read_before(tmp_path: Path) -> None:
    """The second delta reads a chunk that the first one changed, and that the target no longer has."""
    old = np.random.default_rng(0).integers(0, 255, CHUNK + 200_000, np.uint8)
    one = old.copy()
    one[CHUNK + 5] += 1
    two = np.concatenate([one[-300_000:], one[:200_000]])
    whole = save_chain(tmp_path, [{"w": each} for each in (old, one, two)], codecs=("sparse", "bsdiff"))

    with pytest.raises(ckpt.BaseNeededError):
        ckpt.squash(whole, tmp_path / "d", codecs=("sparse",))
    made = ckpt.squash(whole, tmp_path / "d")

    assert [frame.codec for frame in made.storages[0].frames] == ["chain"]
    assert ckpt.apply(tmp_path / "0", tmp_path / "d", tmp_path / "made").seal == made.target_seal


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chain=st.lists(states, min_size=2, max_size=4))
def test_any_states_in_a_row_are_squashed(chain: list[object], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("chain")
    try:
        whole = save_chain(folder, [{"s": state} for state in chain], codecs=(*ADDING, "bsdiff"))
    except ckpt.UnsupportedStateError:
        reject()
    target = ckpt.read_manifest(folder / f"{len(whole)}")

    ckpt.squash(whole, folder / "with", base=folder / "0")
    assert ckpt.apply(folder / "0", folder / "with", folder / "made-with").seal == target.seal
    try:
        ckpt.squash(whole, folder / "without")
    except ckpt.BaseNeededError:
        return
    assert ckpt.apply(folder / "0", folder / "without", folder / "made-without").seal == target.seal


_steps = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["few", "all", "noise", "row", "cut"])), max_size=4),
    min_size=2,
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_steps, new=st.booleans(), codecs=st.sampled_from([ADDING, ("contextual",), tuple(CODECS)]))
def test_steps_of_any_chunks_are_composed_without_their_base(
    steps: list[list[tuple[int, str]]],
    new: bool,
    codecs: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Few elements, all, or noise that is stored whole, in any of five chunks; rows come and go, so that all moves.

    The storage itself may come with a delta. Only where rows moved may the base be needed, and then that is said.
    """
    folder, choose = tmp_path_factory.mktemp("chain"), np.random.default_rng(len(steps))
    at = choose.integers(0, 9, 9 * CHUNK // 4, np.uint16)
    chain: list[object] = [{"other": torch.ones(2)}] if new else []
    chain.append({"w": at})
    for step in steps:
        at = at.copy()
        for chunk, kind in step:
            part = at[chunk * CHUNK // 2 : (chunk + 1) * CHUNK // 2]
            part[:: 97 if kind == "few" else 1] += np.uint16(1)
            if kind == "noise":
                part[:] = choose.integers(0, 1 << 16, len(part), np.uint16)
            if kind == "row":
                at = np.insert(at, chunk * CHUNK // 4, choose.integers(0, 9, 512, np.uint16))
            if kind == "cut":
                at = np.delete(at, slice(chunk * CHUNK // 4, chunk * CHUNK // 4 + 512))
        chain.append({"w": at})
    whole = save_chain(folder, chain, codecs=codecs)
    moved = any(kind in ("row", "cut") for step in steps for _, kind in step)

    try:
        made = ckpt.squash(whole, folder / "d")
    except ckpt.BaseNeededError:
        assert moved
        made = ckpt.squash(whole, folder / "d", base=folder / "0")

    assert ckpt.apply(folder / "0", folder / "d", folder / "made").seal == made.target_seal
    assert made.target_root == ckpt.read_manifest(folder / f"{len(whole)}").root


def test_the_same_deltas_give_the_same_bytes(chain: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        ckpt.squash(deltas(chain), tmp_path / name)

    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")


ORDERS: dict[str, Callable[[list[Path]], Sequence[Path]]] = {
    "the other way round": lambda whole: whole[::-1],
    "with a gap": lambda whole: [whole[0], whole[2]],
    "one twice": lambda whole: [whole[0], whole[0], whole[1]],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("base", ["0", None])
def test_a_chain_that_does_not_fit_is_refused_by_root(
    base: str | None, order: str, chain: Path, tmp_path: Path
) -> None:
    whole = ORDERS[order](deltas(chain))

    with pytest.raises(ckpt.WrongBaseError) as caught:
        ckpt.squash(whole, tmp_path / "d", base=None if base is None else chain / base)

    assert caught.value.delta == whole[1]
    assert caught.value.found == ckpt.read_delta(whole[0]).target_root
    assert caught.value.expected == ckpt.read_delta(whole[1]).base_root
    assert f"but what '{whole[0]}' makes has root" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_base_is_refused_by_root(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(ckpt.WrongBaseError) as caught:
        ckpt.squash(deltas(chain), tmp_path / "d", base=chain / "1")

    assert caught.value.delta == chain / "delta-1"
    assert caught.value.found == ckpt.read_manifest(chain / "1").root
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nothing", [[], "delta-1", Path("delta-1")])
def test_no_list_of_deltas_is_a_fault_of_the_call(nothing: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a list of one delta folder or more, in their order"):
        ckpt.squash(nothing, tmp_path / "d")  # type: ignore[arg-type]


def test_an_unknown_codec_is_a_fault_of_the_call(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="codecs are xor; expected some of"):
        ckpt.squash(deltas(chain), tmp_path / "d", codecs=("xor",))


def test_a_place_that_is_taken_is_refused(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(ckpt.DestinationError, match="exists already"):
        ckpt.squash(deltas(chain)[1:], tmp_path)


def test_every_delta_must_be_signed_by_a_trusted_key(chain: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    ckpt.diff(chain / "1", chain / "2", plain)
    first, _, last = deltas(chain)

    for whole, keys, error in (
        ([first, plain, last], OLD, ckpt.UnsignedError),
        ([first, plain, last], FOREIGN, ckpt.UntrustedKeyError),
    ):
        with pytest.raises(error):
            ckpt.squash(whole, tmp_path / "d", base=chain / "0", trust=trusting(keys))
    ckpt.squash(deltas(chain), tmp_path / "d", base=chain / "0", trust=trusting(OLD, line="mnist"))
    with pytest.raises(ckpt.UnsignedError):  # who made it vouches for it, or nobody
        ckpt.apply(chain / "0", tmp_path / "d", tmp_path / "made", trust=trusting(OLD))


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "a bit of a frame": (lambda delta: _flipped(delta / "patch-00001.bin"), ckpt.CorruptFrameError),
    "a short patch": (lambda delta: os.truncate(delta / "patch-00001.bin", 9), ckpt.CorruptFrameError),
    "no patch": (lambda delta: (delta / "patch-00001.bin").unlink(), ckpt.CorruptFrameError),
    "a bit of delta.pb": (lambda delta: _flipped(delta / "delta.pb"), ckpt.FormatError),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("with_base", [True, False])
def test_damage_is_refused_and_nothing_appears(with_base: bool, damage: str, tmp_path: Path) -> None:
    hurt, error = DAMAGES[damage]
    start = torch.randint(0, 100, (CHUNK,), dtype=torch.int16)
    whole = save_chain(tmp_path, [{"w": start + step} for step in range(4)], codecs=ADDING)
    hurt(whole[1])
    before = sorted(path.name for path in tmp_path.iterdir())

    with pytest.raises(error):
        ckpt.squash(whole, tmp_path / "d", base=tmp_path / "0" if with_base else None)

    assert sorted(path.name for path in tmp_path.iterdir()) == before
