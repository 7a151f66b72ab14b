"""Differences coded by what the base says of them: exact for any bits, smaller than without, the same everywhere."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ckpt
from ckpt.deltas.codecs import codec, contextual
from ckpt.deltas.codecs.contextual import machine
from ckpt.deltas.codecs.contextual.coder import learn, prepare
from ckpt.deltas.codecs.contextual.decay import LOSS_BITS, fitted
from ckpt.deltas.codecs.contextual.layout import SHARE, START, WHOLE, lookup, tables
from ckpt.deltas.codecs.contextual.loops import decayed

MANTISSA = {1: 3, 2: 7, 4: 23, 8: 52}


def view(values: NDArray[np.unsignedinteger]) -> memoryview:
    return values.view(np.uint8).data


def there_and_back(old: NDArray[np.unsignedinteger], new: NDArray[np.unsignedinteger], mantissa_bits: int) -> int:
    """Bytes that the change takes; it must come back bit for bit."""
    width = old.dtype.itemsize
    encoded = contextual.encode(view(old), view(new), width=width, mantissa_bits=mantissa_bits)
    assert bytes(contextual.decode(view(old), memoryview(encoded), width=width, size=new.nbytes)) == new.tobytes()
    return len(encoded)


def weights(count: int, *, seed: int = 0) -> NDArray[np.uint16]:
    """bfloat16 bits of about normal numbers, from integers alone: the same on every machine."""
    parts = np.random.default_rng(seed).integers(-(2**20), 2**20, (4, count))
    return ((parts.sum(axis=0) / 2**25).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_bits_come_back(width: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 3000))
    choose = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    old = choose.integers(0, 256, count * width, np.uint8).view(f"<u{width}")
    new = old.copy()
    changed = choose.random(count) < data.draw(st.sampled_from([0.0, 0.003, 0.05, 0.4, 1.0]))
    reach = data.draw(st.sampled_from([1, 3, 100, 2 ** (8 * width - 2)]))
    new[changed] += choose.integers(0, 2 * reach, int(changed.sum())).astype(new.dtype) - np.array(reach, new.dtype)

    there_and_back(old, new, data.draw(st.sampled_from([0, MANTISSA[width]])))


def test_what_a_change_costs_follows_from_the_exponent() -> None:
    old = weights(1 << 18)
    small = (old & 0x7FFF) < 0x3A00  # below 2**-11
    new = old.copy()
    new[small] += np.random.default_rng(1).integers(0, 2, int(small.sum())).astype(np.uint16) * 2 - 1

    size = there_and_back(old, new, 7)

    assert size < int(small.sum()) / 8 * 1.05 + 200  # a bit for each sign, and hardly anything for where
    assert size < 0.5 * len(codec("sparse").encode(view(old), view(new), width=2))


def test_a_difference_that_comes_again_and_again_costs_its_sign() -> None:
    old = np.random.default_rng(0).integers(0x3F800000, 0x3FFFFFFF, 1 << 17).astype(np.uint32)
    new = old + np.random.default_rng(1).integers(0, 2, old.size).astype(np.uint32) * 2 * 8389 - 8389

    assert there_and_back(old, new, 23) < old.size / 8 * 1.06


@pytest.mark.parametrize(("rate", "steps"), [(1e-4, 1), (1e-5, 10), (1e-4, 100), (2e-3, 3)])
def test_untouched_rows_cost_nothing_although_weight_decay_moved_them(rate: float, steps: int) -> None:
    torch.manual_seed(0)
    table = torch.nn.Embedding(2000, 64)
    optimiser = torch.optim.AdamW(table.parameters(), lr=rate)
    old = table.weight.detach().numpy().copy().view(np.uint32).ravel()
    for _ in range(steps):
        optimiser.zero_grad()
        table(torch.arange(100)).square().sum().backward()
        optimiser.step()
    new = table.weight.detach().numpy().view(np.uint32).ravel()

    loss, found = fitted(old, new)

    assert found == steps
    assert abs(loss / 2**LOSS_BITS - rate * 0.01) < 2.0**-24
    untouched = np.array([decayed(int(bits), loss, steps) for bits in old[6400:]], np.uint32)
    exact = np.count_nonzero(untouched == new[6400:]) / untouched.size
    assert exact > 0.9  # the others crossed a power of two, or a step that rounds the other way, and are coded
    assert there_and_back(old[6400:], new[6400:], 23) < 0.1 * len(
        codec("planes").encode(view(old[6400:]), view(new[6400:]), width=4)
    )


@pytest.mark.parametrize("decay", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("rate", [1e-6, 1e-5, 1e-4, 1e-3])
def test_the_first_step_of_adam_is_told_from_the_decay_beside_it(rate: float, decay: float) -> None:
    """All weights of an exponent move by the same up or down, in which some decay is always found."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(100_000) / 16)
    optimiser = torch.optim.AdamW([weight], lr=rate, weight_decay=decay)
    old = weight.detach().numpy().copy().view(np.uint32)
    (weight * torch.randn(100_000)).sum().backward()
    optimiser.step()
    new = weight.detach().numpy().view(np.uint32)

    loss, steps = fitted(old, new)

    lost = 1 - float(np.float32(1 - rate * decay))  # as torch multiplies
    assert steps <= 1
    assert loss / 2**LOSS_BITS == lost
    assert there_and_back(old, new, 23) < 3.5 * old.size / 8


def test_moments_decay_alike() -> None:
    old = np.random.default_rng(0).random(20_000, np.float32) * 1e-6
    new = old * np.float32(0.9)

    assert fitted(old.view(np.uint32), new.view(np.uint32))[1] == 1
    assert there_and_back(old.view(np.uint32), new.view(np.uint32), 23) < old.size / 20


@pytest.mark.parametrize("special", [0x7F800000, 0xFF800000, 0x7FC00001, 0x00000001, 0x80000000, 0x00800000])
def test_what_does_not_decay_as_a_number_does_stays_as_it_is(special: int) -> None:
    assert decayed(special, 1 << (LOSS_BITS - 4), 7) == special


def test_the_bytes_are_the_same_on_every_machine() -> None:
    old = weights(1 << 16)
    new = old.copy()
    new[::7] += np.random.default_rng(3).integers(0, 300, old[::7].size).astype(np.uint16)

    encoded = contextual.encode(view(old), view(new), width=2, mantissa_bits=7)

    assert hashlib.sha256(encoded).hexdigest() == "98e4b120239c86b875fb7d17a5d81fb3b7950567e356c1092306b43da5c6e613"


def test_no_bit_after_the_head_is_without_a_meaning() -> None:
    old = weights(3000)
    new = old.copy()
    new[::3] += 25
    encoded = contextual.encode(view(old), view(new), width=2, mantissa_bits=7)
    bits = 8 * len(encoded)
    choose = np.random.default_rng(0)

    with pytest.raises(ValueError, match="lead to no end"):
        contextual.decode(view(old), memoryview(encoded + b"\0"), width=2, size=old.nbytes)
    for place in {*range(bits - 8, bits), *choose.integers(8 * 17, bits, 300)}:
        flipped = bytearray(encoded)
        flipped[place // 8] ^= 1 << place % 8
        try:
            other = contextual.decode(view(old), memoryview(flipped), width=2, size=old.nbytes)
        except ValueError:
            continue
        assert bytes(other) != new.tobytes()


def test_shares_of_a_context_are_whole_and_none_is_zero() -> None:
    (table, turns), quick = tables(2), lookup()
    choose = np.random.default_rng(0)
    prepare(table, turns, quick, 2, 67, 2)
    for _ in range(30_000):
        learn(table, turns, quick, 2, int(choose.geometric(0.2)) % 67, 67)

    shares, starts = table[2, :, SHARE], table[2, :, START]
    assert shares.sum() == WHOLE
    assert shares.min() >= 1
    assert (starts == np.cumsum(shares) - shares).all()
    assert table[2].max() < 2**20  # counts are halved before they grow without end


def test_trained_floats_are_coded_by_context(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {"w": (torch.randn(600, 500) * 0.02).bfloat16(), "h": torch.randn(300, 200).half()}
    new = {"w": (old["w"].float() + 1e-4 * torch.randn(600, 500)).bfloat16(), "h": old["h"] + 2e-4}
    ckpt.save(old, tmp_path / "old")
    ckpt.save(new, tmp_path / "new")

    small = ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "small")
    quick = ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "quick", codecs=("sparse", "planes"))

    assert {frame.codec for frame in small.frames()} == {"contextual"}
    assert {frame.codec for frame in quick.frames()} <= {"sparse", "planes"}
    assert small.size_bytes < 0.85 * quick.size_bytes
    assert ckpt.apply(tmp_path / "old", tmp_path / "small", tmp_path / "made").root == small.target_root


def test_a_codec_that_there_is_not_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"codecs are zip; expected some of contextual, sparse, planes, moved, bsdiff"):
        ckpt.diff(tmp_path / "old", tmp_path / "new", tmp_path / "delta", codecs=("zip", "raw"))


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (0, 3, "classes above bit 3"),
        (0, 16, "classes above bit 16"),
        (1, 200, "classes 200 to"),
        (3, 2, "classes"),
        (4, 1, "a decay of 0 in 1 steps"),
        (5, 1, "a decay of 1 in 0 steps"),
        (13, 1, "1 words in"),
        (16, 9, "words in"),
        (21, 0xAA, "lead to no end"),
    ],
)
def test_a_head_that_lies_is_refused(at: int, value: int, says: str) -> None:
    old = weights(4000)
    new = old.copy()
    new[::5] += 9
    encoded = bytearray(contextual.encode(view(old), view(new), width=2, mantissa_bits=7))
    encoded[at] = value if encoded[at] != value else value ^ 1

    with pytest.raises(ValueError, match=says):
        contextual.decode(view(old), memoryview(encoded), width=2, size=old.nbytes)


@pytest.mark.slow
def test_code_is_compiled_once_and_nothing_is_unpickled(tmp_path: Path) -> None:
    """In processes of their own; an audit hook sees whatever reads a pickle."""
    script = """
import sys
read = []
sys.addaudithook(lambda event, given: read.append(given) if event == "pickle.find_class" else None)
from pathlib import Path
import numpy as np
from ckpt.deltas.codecs import contextual
from ckpt.deltas.codecs.contextual import machine
machine._folders = lambda: [Path("/proc/no"), Path(sys.argv[1])]
read.clear()  # torch reads some of its own
old = np.arange(9000, dtype=np.uint16)
new = old + (old % 7 == 0).astype(np.uint16)
encoded = contextual.encode(old.view(np.uint8).data, new.view(np.uint8).data, width=2, mantissa_bits=7)
made = contextual.decode(old.view(np.uint8).data, memoryview(encoded), width=2, size=old.nbytes)
assert bytes(made) == new.tobytes()
print("numba" in sys.modules, read)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(ckpt.__file__).parents[1])}

    said = [subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout for _ in "ab"]

    assert said == ["True []\n", "False []\n"]
    assert len(list(tmp_path.glob("*.o"))) == len(list(tmp_path.iterdir())) == 5


def test_a_user_without_a_home_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does for a number that no user has

    assert [folder.name for folder in machine._folders()] == ["__pycache__"]


@pytest.mark.parametrize("spoil", ["torn", "written by a group", "another symbol"])
def test_code_that_was_kept_is_believed_only_whole_and_from_its_owner(spoil: str, tmp_path: Path) -> None:
    file = tmp_path / "write.o"
    machine._write(file, "symbol", b"code")
    assert machine._read(file) == b"symbol\ncode"

    match spoil:
        case "torn":
            file.write_bytes(file.read_bytes()[:-1])
        case "written by a group":
            file.chmod(0o664)
        case _:
            file.write_bytes(file.read_bytes().replace(b"symbol", b"lobmys"))

    assert machine._read(file) is None
