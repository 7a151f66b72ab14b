"""A delta is applied under trust only as a trusted key signed it; what it makes is signed as its target was."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ckpt
from ckpt.signatures.statements import MAX_SIGNATURES
from tests.ckpt.signers import (
    FOREIGN,
    NEW,
    OLD,
    edit_statement,
    flipped,
    later,
    noon,
    put_signatures,
    says,
    signatures_of,
    trusting,
)
from tests.hostile.edits import copied, put, rewrite_delta

DELTA = ckpt.StatementKind.DELTA


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``old`` without signature, ``new`` signed, the signed ``delta`` between them, and ``back`` the other way."""
    folder = tmp_path_factory.mktemp("signed")
    who = ckpt.signer(OLD, line="mnist", now=noon, not_after=later(days=1))
    ckpt.save({"w": torch.zeros(1000), "n": 1}, folder / "old")
    ckpt.save({"w": torch.ones(1000), "n": 2}, folder / "new", sign=who)
    ckpt.diff(folder / "old", folder / "new", folder / "delta", sign=who)
    ckpt.diff(folder / "new", folder / "old", folder / "back", sign=who)
    return folder


@pytest.fixture
def delta(made: Path, tmp_path: Path) -> Path:
    return copied(made / "delta", tmp_path / "delta")


def test_a_signed_delta_makes_a_signed_target(made: Path, tmp_path: Path) -> None:
    ckpt.apply(made / "old", made / "delta", tmp_path / "out", trust=trusting(OLD, line="mnist"))

    assert ckpt.load(tmp_path / "out", trust=trusting(OLD, line="mnist"))["n"] == 2
    assert (tmp_path / "out" / "signatures.pb").read_bytes() == (made / "new" / "signatures.pb").read_bytes()


def test_the_target_s_signatures_travel_without_trust_too(made: Path, tmp_path: Path) -> None:
    ckpt.diff(made / "old", made / "new", tmp_path / "plain")
    ckpt.apply(made / "old", tmp_path / "plain", tmp_path / "out")

    assert ckpt.load(tmp_path / "out", trust=trusting(OLD))["n"] == 2
    assert signatures_of(tmp_path / "plain", DELTA).own == ()


def test_signatures_are_no_part_of_a_delta_s_digest(made: Path, tmp_path: Path) -> None:
    plain = ckpt.diff(made / "old", made / "new", tmp_path / "plain")

    assert (tmp_path / "plain" / "delta.pb").read_bytes() == (made / "delta" / "delta.pb").read_bytes()
    assert plain == ckpt.read_delta(made / "delta")


def test_without_signatures_there_is_no_file_of_them(made: Path, tmp_path: Path) -> None:
    ckpt.diff(made / "new", made / "old", tmp_path / "d")
    ckpt.apply(made / "new", tmp_path / "d", tmp_path / "out")

    assert not (tmp_path / "d" / "signatures.pb").exists()
    assert not (tmp_path / "out" / "signatures.pb").exists()


def test_a_delta_s_key_is_rotated_and_the_target_s_stays(made: Path, delta: Path, tmp_path: Path) -> None:
    ckpt.sign(delta, NEW, now=noon, replaces=[OLD.public_key()])

    with pytest.raises(ckpt.UntrustedKeyError):
        ckpt.apply(made / "old", delta, tmp_path / "out", trust=trusting(OLD))
    ckpt.apply(made / "old", delta, tmp_path / "out", trust=trusting(NEW))
    assert ckpt.load(tmp_path / "out", trust=trusting(OLD))["n"] == 2
    assert ckpt.unsign(delta, [NEW.public_key()]) == 1
    assert len(signatures_of(delta, DELTA).target) == 1


def _edited(delta: Path) -> None:
    """The frames' bytes and all else as they were: only the counter of a delta that is sealed again."""
    rewrite_delta(delta, lambda message: put(message, sequence=7))


def _flip(field: str) -> Callable[[Path], None]:
    def forge(delta: Path) -> None:
        signatures = signatures_of(delta, DELTA)
        put_signatures(delta, flipped(signatures.own[0], field), target=signatures.target)

    return forge


def _moved(delta: Path) -> None:
    """The target's signature as if it were the delta's own."""
    put_signatures(delta, *signatures_of(delta, DELTA).target)


def _carried_only(delta: Path) -> None:
    put_signatures(delta, target=signatures_of(delta, DELTA).target)


def _patch(delta: Path) -> None:
    file = delta / "patch-00001.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"\x55")


FORGERIES: dict[str, tuple[Callable[[Path], object], type[ckpt.CheckpointError]]] = {
    "no file of signatures": (lambda delta: (delta / "signatures.pb").unlink(), ckpt.UnsignedError),
    "only the target signed": (_carried_only, ckpt.UnsignedError),
    "the target's signature for its own": (_moved, ckpt.WrongKindError),
    "a delta edited and sealed again": (_edited, ckpt.WrongSubjectError),
    "a flipped bit in the signature": (_flip("signature"), ckpt.BadSignatureError),
    "a flipped bit in the statement": (_flip("statement"), ckpt.BadSignatureError),
    "an edited line": (
        lambda delta: edit_statement(delta, lambda statement: put(statement, line="x")), ckpt.BadSignatureError
    ),
    "a foreign signature": (lambda delta: put_signatures(delta, says(FOREIGN, b"x")), ckpt.UntrustedKeyError),
    "a changed frame": (_patch, ckpt.CorruptFrameError),
    "a truncated file": (lambda delta: (delta / "signatures.pb").write_bytes(b"tree"), ckpt.FormatError),
    "too many for the target": (
        lambda delta: put_signatures(delta, target=tuple(says(OLD, bytes([n + 1])) for n in range(MAX_SIGNATURES + 1))),
        ckpt.FormatError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_delta_is_refused_and_nothing_changes(forgery: str, made: Path, delta: Path, tmp_path: Path) -> None:
    forge, error = FORGERIES[forgery]
    forge(delta)

    with pytest.raises(error):
        ckpt.apply(made / "old", delta, tmp_path / "out", trust=trusting(OLD))

    assert [entry.name for entry in tmp_path.iterdir()] == ["delta"]
    assert ckpt.load(made / "old")["n"] == 1


def test_the_signature_of_another_delta_does_not_count(made: Path, delta: Path, tmp_path: Path) -> None:
    shutil.copy(made / "back" / "signatures.pb", delta)

    with pytest.raises(ckpt.WrongSubjectError):
        ckpt.apply(made / "old", delta, tmp_path / "out", trust=trusting(OLD))


def test_line_and_time_count_for_deltas_too(made: Path, tmp_path: Path) -> None:
    for trust, error in (
        (trusting(OLD, line="search"), ckpt.WrongLineError),
        (trusting(OLD, now=later(days=2)), ckpt.ExpiredSignatureError),
        (trusting(NEW), ckpt.UntrustedKeyError),
    ):
        with pytest.raises(error):
            ckpt.apply(made / "old", made / "delta", tmp_path / "out", trust=trust)

    seen = trusting(OLD, now=later(days=2), seen=[ckpt.read_delta(made / "delta").digest])
    ckpt.apply(made / "old", made / "delta", tmp_path / "out", trust=seen)


def test_a_base_that_was_forged_makes_nothing(made: Path, tmp_path: Path) -> None:
    """The base need not be signed: the delta names its root, and each chunk of the target is proved."""
    base = copied(made / "old", tmp_path / "base")
    ckpt.save({"w": torch.ones(1000), "n": 1}, base, overwrite=True)

    with pytest.raises(ckpt.WrongBaseError):
        ckpt.apply(base, made / "delta", tmp_path / "out", trust=trusting(OLD))
