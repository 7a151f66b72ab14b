"""apply(apply(base, delta), invert(delta)) is the base; what the delta does not hold is asked for by name."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import ckpt
from tests.ckpt.chains import ADDING, SIGNER, save_chain, training
from tests.ckpt.equality import same
from tests.ckpt.signers import FOREIGN, OLD, trusting
from tests.ckpt.strategies import states

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Signed checkpoints 0 … 3 and the deltas between them."""
    folder = tmp_path_factory.mktemp("chain")
    save_chain(folder, training(), sign=True)
    return folder


@pytest.mark.parametrize("step", [1, 2, 3])
def test_there_and_back_is_the_base(step: int, chain: Path, tmp_path: Path) -> None:
    before, after = chain / f"{step - 1}", chain / f"{step}"

    inverse = ckpt.invert(chain / f"delta-{step}", tmp_path / "back", base=before, sign=SIGNER)
    made = ckpt.apply(after, tmp_path / "back", tmp_path / "made", trust=trusting(OLD, line="mnist"))

    assert (inverse.base_root, inverse.target_root) == (
        ckpt.read_manifest(after).root,
        ckpt.read_manifest(before).root,
    )
    assert made.seal == ckpt.read_manifest(before).seal
    for file in before.iterdir():  # weights, attachments, signatures, all of it
        assert (tmp_path / "made" / file.name).read_bytes() == file.read_bytes()


def test_it_is_the_diff_of_target_and_base(chain: Path, tmp_path: Path) -> None:
    ckpt.diff(chain / "2", chain / "1", tmp_path / "diff", codecs=ADDING)

    ckpt.invert(chain / "delta-2", tmp_path / "back", base=chain / "1", codecs=ADDING)

    for file in (tmp_path / "diff").iterdir():
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()


def test_twice_inverted_it_does_the_same(chain: Path, tmp_path: Path) -> None:
    ckpt.invert(chain / "delta-1", tmp_path / "back", base=chain / "0")

    again = ckpt.invert(tmp_path / "back", tmp_path / "again", base=chain / "1")

    assert (again.base_root, again.target_seal) == (
        ckpt.read_manifest(chain / "0").root,
        ckpt.read_manifest(chain / "1").seal,
    )
    assert (tmp_path / "again" / "patch-00001.bin").read_bytes() == (chain / "delta-1/patch-00001.bin").read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=states, new=states, codecs=st.sampled_from([(), ADDING, ("contextual", "bsdiff")]))
def test_any_delta_is_inverted(
    old: object, new: object, codecs: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pair")
    try:
        (delta,) = save_chain(folder, [{"s": old}, {"s": new}], codecs=codecs)
    except ckpt.UnsupportedStateError:
        reject()

    ckpt.invert(delta, folder / "back", base=folder / "0")
    made = ckpt.apply(folder / "1", folder / "back", folder / "made")

    assert made.seal == ckpt.read_manifest(folder / "0").seal
    assert same(ckpt.load(folder / "made", verify="sha256"), {"s": old})


def test_without_the_base_it_is_said_what_is_missing(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(ckpt.BaseNeededError) as caught:
        ckpt.invert(chain / "delta-1", tmp_path / "back")

    assert caught.value.delta == chain / "delta-1"
    assert caught.value.expected == ckpt.read_manifest(chain / "0").root
    assert "neither the state, names and metadata of its base nor the digests of" in str(caught.value)
    assert "frames (bsdiff, contextual, moved, raw) are undone with its bytes only" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_base_is_refused_by_root(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(ckpt.WrongBaseError) as caught:
        ckpt.invert(chain / "delta-1", tmp_path / "back", base=chain / "1")

    assert caught.value.expected == ckpt.read_manifest(chain / "0").root
    assert caught.value.found == ckpt.read_manifest(chain / "1").root
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_codec_is_a_fault_of_the_call(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="codecs are xor; expected some of"):
        ckpt.invert(chain / "delta-1", tmp_path / "back", base=chain / "0", codecs=("xor",))


def test_trust_counts_before_anything_else(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(ckpt.UntrustedKeyError):
        ckpt.invert(chain / "delta-1", tmp_path / "back", trust=trusting(FOREIGN))
    ckpt.invert(chain / "delta-1", tmp_path / "back", base=chain / "0", trust=trusting(OLD, line="mnist"))


@pytest.mark.parametrize("hurt", ["0", "delta-1"])
def test_damage_is_refused_and_nothing_appears(hurt: str, tmp_path: Path) -> None:
    start = torch.randn(1 << 20)
    save_chain(tmp_path, [{"w": start}, {"w": start * 1.001}])
    file = next(file for file in (tmp_path / hurt).iterdir() if file.name.startswith(("weights", "patch")))
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data)
    before = sorted(path.name for path in tmp_path.iterdir())

    with pytest.raises((ckpt.CorruptChunkError, ckpt.CorruptFrameError)):
        ckpt.invert(tmp_path / "delta-1", tmp_path / "back", base=tmp_path / "0")

    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_it_tells_how_far_it_is(chain: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    ckpt.invert(chain / "delta-1", tmp_path / "back", base=chain / "0", progress=lambda *now: told.append(now))

    assert told == sorted(told)
    assert told[-1] == (ckpt.read_manifest(chain / "0").payload_bytes,) * 2
