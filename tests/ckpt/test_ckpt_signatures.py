"""With trust, what nobody who is trusted has signed is refused by name, whoever edited what."""

import hashlib
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckpt
from ckpt.__main__ import main
from ckpt.format.digests import CHUNK_BYTES, sha256
from ckpt.proto import checkpoint_pb2
from ckpt.signatures.statements import preauthenticated, statement_from_bytes, statement_to_bytes
from tests.ckpt.signers import (
    FOREIGN,
    NEW,
    NOON,
    OLD,
    READERS,
    edit_statement,
    flipped,
    later,
    name_of,
    noon,
    put_signatures,
    rewrite_signatures,
    says,
    signatures_of,
    trusting,
)
from tests.hostile.edits import copied, crc32_field, mutate, put, rewrite_manifest, tensor

STATE = {"aa": torch.arange(8.0), "bb": torch.zeros(8), "n": 3}


def save(path: Path, state: object, *, key: Ed25519PrivateKey = OLD, line: str = "mnist") -> ckpt.Manifest:
    return ckpt.save(state, path, sign=ckpt.signer(key, line=line, now=noon, not_after=later(days=1)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "c", STATE)
    return tmp_path / "c"


def test_the_bytes_that_are_signed_are_these() -> None:
    """Written out by hand: the statement as protobuf, the domain and length before it, Ed25519 over both."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    statement = ckpt.Statement(
        kind=ckpt.StatementKind.CHECKPOINT,
        subject="sha256:" + "ab" * 32,
        line="mnist",
        issued_at=NOON,
        not_after=later(days=1),
        key_id=name_of(key),
    )
    spki = bytes.fromhex("302a300506032b6570032100") + key.public_key().public_bytes_raw()
    by_hand = (
        b"\x08\x01"  # format_version 1
        + b"\x10\x01"  # kind: checkpoint
        + b"\x1a\x20" + b"\xab" * 32  # subject
        + b"\x22\x05mnist"  # line
        + b"\x28\x80\xc4\xb3\xec\xf1\x33"  # issued_at_ms 1,782,907,200,000
        + b"\x30\x80\xfc\xcc\x95\xf2\x33"  # not_after_ms 1,782,993,600,000
        + b"\x3a\x20" + hashlib.sha256(spki).digest()  # key_id
    )  # fmt: skip

    encoded = statement_to_bytes(statement)

    assert encoded == by_hand
    assert statement_from_bytes(encoded, "here") == statement
    assert preauthenticated(encoded) == b"treering/statement/v1\0" + struct.pack("<Q", len(by_hand)) + by_hand
    assert key.sign(preauthenticated(encoded)).hex() == (
        "aba96d8e2d3b3af4be3cc6a13e64e4f7447b810df66e89223bad3bde4b8469e1"
        "4de9c69c8ccaeebd29936b955615b66c4b91756d6f0f49fdfbd485785d84f109"  # openssl pkeyutl -sign -rawin gives it, too
    )


def test_the_file_is_an_envelope_of_sorted_signatures(folder: Path) -> None:
    data = (folder / "signatures.pb").read_bytes()
    own = signatures_of(folder).own
    inner = b"\x0a\x20" + own[0].key_id + b"\x12" + bytes([len(own[0].statement)]) + own[0].statement
    inner += b"\x1a\x40" + own[0].signature
    body = b"\x0a" + bytes([len(inner) & 0x7F | 0x80, len(inner) >> 7]) + inner

    assert data == b"treering-sign\r\n\x01" + struct.pack("<Q", len(body)) + body + hashlib.sha256(body).digest()


@pytest.mark.parametrize("reader", READERS)
def test_what_a_trusted_key_signed_is_read(reader: str, folder: Path) -> None:
    READERS[reader](folder, trusting(OLD, line="mnist"))
    READERS[reader](folder, trusting(FOREIGN, OLD))


def test_the_statement_that_counted_is_told(folder: Path) -> None:
    report = ckpt.verify(folder, trust=trusting(OLD))
    with ckpt.open(folder, trust=trusting(OLD)) as opened:
        accepted = opened.accepted

    assert accepted == report.accepted
    assert accepted is not None
    assert (accepted.subject, accepted.line, accepted.key_id) == (opened.seal, "mnist", name_of(OLD))
    assert (accepted.issued_at, accepted.not_after) == (NOON, later(days=1))
    assert ckpt.verify(folder).accepted is None


# --- forged content -----------------------------------------------------------------------------------------------


def _chunk(folder: Path, *, state_digest: bool) -> None:
    """Another byte in a chunk, with a CRC that is right; with or without its SHA-256 made right, too."""
    file = next(folder.glob("weights-*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 0x40
    file.write_bytes(data)

    def edit(message: checkpoint_pb2.Manifest) -> None:
        storage = message.storages[tensor(message, "bb").storage]
        chunk = data[storage.offset : storage.offset + storage.size]
        assert storage.size < CHUNK_BYTES
        put(storage, crc32=crc32_field(chunk))
        if state_digest:
            put(storage, sha256=sha256(chunk))

    rewrite_manifest(folder, edit)
    ckpt.load(folder)  # nothing else would notice


def _swap_header(folder: Path, *, state_digest: bool) -> None:
    """Two names exchanged in a safetensors header, which the file table may follow."""
    file = next(folder.glob("weights-*"))
    data = file.read_bytes().replace(b'"aa"', b'"??"').replace(b'"bb"', b'"aa"').replace(b'"??"', b'"bb"')
    file.write_bytes(data)

    def edit(message: checkpoint_pb2.Manifest) -> None:
        record = next(record for record in message.files if record.name == file.name)
        put(record, header_sha256=sha256(data[: record.header_size]))

    if state_digest:
        rewrite_manifest(folder, edit)


def _replace(folder: Path, state: object) -> None:
    """Everything is another checkpoint's, whole and consistent, but for the signatures."""
    signatures = (folder / "signatures.pb").read_bytes()
    shutil.rmtree(folder)
    ckpt.save(state, folder)
    (folder / "signatures.pb").write_bytes(signatures)


def _edit_manifest(folder: Path) -> None:
    rewrite_manifest(folder, lambda message: message.metadata.add(key="accuracy", value="1.0"))


CONTENT: dict[str, tuple[Callable[[Path], None], type[ckpt.CheckpointError], str]] = {
    "a chunk with a right CRC": (
        lambda folder: _chunk(folder, state_digest=False), ckpt.CorruptChunkError, "chunk 0 of the storage of 'bb'"
    ),
    "a chunk with right digests": (
        lambda folder: _chunk(folder, state_digest=True), ckpt.WrongSubjectError, "altered after it was signed"
    ),
    "swapped names in a header": (
        lambda folder: _swap_header(folder, state_digest=False), ckpt.CorruptFileError, "the header of 'weights-"
    ),
    "swapped names in a header with its digest": (
        lambda folder: _swap_header(folder, state_digest=True), ckpt.CorruptFileError, "other names, shapes or places"
    ),
    "swapped names everywhere": (
        lambda folder: _replace(folder, {**STATE, "aa": STATE["bb"], "bb": STATE["aa"]}),
        ckpt.WrongSubjectError,
        "a signature of sha256:",
    ),
    "another number in the state": (
        lambda folder: _replace(folder, {**STATE, "n": 4}), ckpt.WrongSubjectError, "a signature of sha256:"
    ),
    "other metadata": (_edit_manifest, ckpt.WrongSubjectError, "a signature of sha256:"),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("forgery", CONTENT)
def test_forged_content_is_refused(forgery: str, reader: str, folder: Path) -> None:
    forge, error, message = CONTENT[forgery]
    forge(folder)

    with pytest.raises(error, match=message):
        READERS[reader](folder, trusting(OLD))


def test_nothing_is_copied_into_a_module_that_is_not_signed(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 1)
    save(tmp_path / "c", module.state_dict(), key=FOREIGN)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        module.weight.zero_()

    with pytest.raises(ckpt.UntrustedKeyError):
        ckpt.load_into(module, tmp_path / "c", trust=trusting(OLD))

    assert module.weight.abs().sum() == 0
    ckpt.load_into(module, tmp_path / "c", trust=trusting(FOREIGN))
    assert torch.equal(module.weight, before["weight"])


# --- forged signatures --------------------------------------------------------------------------------------------


def _replayed(folder: Path) -> None:
    """The signature of another version, by the same key for the same line."""
    save(folder.parent / "other", {**STATE, "n": 4})
    shutil.copy(folder.parent / "other" / "signatures.pb", folder)


def _of_a_delta(folder: Path) -> None:
    ckpt.save({"aa": torch.ones(1)}, folder.parent / "base")
    ckpt.diff(folder.parent / "base", folder, folder.parent / "delta", sign=ckpt.signer(OLD, now=noon))
    put_signatures(folder, *signatures_of(folder.parent / "delta", ckpt.StatementKind.DELTA).own)


def _relabelled(folder: Path) -> None:
    """A foreign signature in the name of a trusted key."""
    rewrite_signatures(folder, lambda message: put(message.signatures[0], signature=FOREIGN.sign(b"x")))


def _flip(field: str) -> Callable[[Path], None]:
    return lambda folder: put_signatures(folder, flipped(signatures_of(folder).own[0], field))


def _statement(**fields: object) -> Callable[[Path], None]:
    """A trusted key says what no statement may say."""
    return lambda folder: edit_statement(folder, lambda statement: put(statement, **fields), key=OLD)


def _unknown_field(folder: Path) -> None:
    put_signatures(folder, says(OLD, signatures_of(folder).own[0].statement + b"\x40\x01"))


SIGNATURES: dict[str, tuple[Callable[[Path], None], type[ckpt.CheckpointError], str]] = {
    "missing": (lambda folder: (folder / "signatures.pb").unlink(), ckpt.UnsignedError, "python -m ckpt sign"),
    "an empty list": (put_signatures, ckpt.UnsignedError, "has no signature"),
    "replayed": (_replayed, ckpt.WrongSubjectError, "or the signature is another one's"),
    "of a delta": (_of_a_delta, ckpt.WrongKindError, "signature of a delta, expected that of a checkpoint"),
    "of a promotion": (_statement(kind=3), ckpt.WrongKindError, "signature of a promotion"),
    "in a trusted name": (_relabelled, ckpt.BadSignatureError, "in the name of sha256:"),
    "a flipped bit in it": (_flip("signature"), ckpt.BadSignatureError, "in the name of sha256:"),
    "a flipped bit in the statement": (_flip("statement"), ckpt.BadSignatureError, "in the name of sha256:"),
    "a flipped bit in the key's name": (_flip("key_id"), ckpt.UntrustedKeyError, "expected a trusted key"),
    "a line that was edited": (
        lambda folder: edit_statement(folder, lambda statement: put(statement, line="search")),
        ckpt.BadSignatureError,
        "in the name of sha256:",
    ),
    "a time that was edited": (
        lambda folder: edit_statement(folder, lambda statement: put(statement, not_after_ms=2**40)),
        ckpt.BadSignatureError,
        "in the name of sha256:",
    ),
    "another key's name in the statement": (
        _statement(key_id=bytes(32)), ckpt.BadSignatureError, "a statement in the name of sha256:0000"
    ),
    "a newer format": (_statement(format_version=2), ckpt.VersionError, "format_version: found 2"),
    "an unknown kind": (_statement(kind=9), ckpt.FormatError, "kind: found 9"),
    "half a subject": (_statement(subject=b"x"), ckpt.FormatError, "subject: found 1 bytes"),
    "a line with control characters": (_statement(line="a\x1b[2Jb"), ckpt.FormatError, "control characters"),
    "a line that is too long": (_statement(line="é" * 129), ckpt.FormatError, "258 bytes"),
    "an end before its beginning": (_statement(not_after_ms=1), ckpt.FormatError, "not_after_ms"),
    "a time beyond all calendars": (_statement(not_after_ms=2**63), ckpt.FormatError, "not_after_ms"),
    "a beginning beyond all calendars": (
        _statement(issued_at_ms=2**63, not_after_ms=0), ckpt.FormatError, "not_after_ms"
    ),
    "an unknown field in the statement": (_unknown_field, ckpt.FormatError, "unknown fields"),
    "no statement": (lambda folder: put_signatures(folder, says(OLD, b"\xff")), ckpt.FormatError, "no protobuf"),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("forgery", SIGNATURES)
def test_a_signature_that_does_not_count_is_named(forgery: str, reader: str, folder: Path) -> None:
    forge, error, message = SIGNATURES[forgery]
    forge(folder)

    with pytest.raises(error, match=message):
        READERS[reader](folder, trusting(OLD, FOREIGN))


@pytest.mark.parametrize("reader", READERS)
def test_a_foreign_key_is_not_trusted(reader: str, folder: Path) -> None:
    with pytest.raises(ckpt.UntrustedKeyError, match=name_of(OLD)) as caught:
        READERS[reader](folder, trusting(NEW))

    assert caught.value.path == folder
    assert caught.value.expected == name_of(NEW)


@pytest.mark.parametrize("reader", READERS)
def test_a_renamed_line_is_refused(reader: str, folder: Path) -> None:
    with pytest.raises(ckpt.WrongLineError, match="for the line 'mnist', expected 'search'"):
        READERS[reader](folder, trusting(OLD, line="search"))


def test_one_signature_that_counts_is_enough_whatever_lies_beside_it(folder: Path) -> None:
    good = signatures_of(folder).own[0]
    junk = [says(OLD, bytes([value])) for value in range(9)]
    put_signatures(folder, good, says(FOREIGN, b"x"), flipped(good, "signature"), *junk)

    assert ckpt.load(folder, trust=trusting(OLD, FOREIGN))["n"] == 3


def test_a_statement_that_is_none_is_told_beside_the_rest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It takes nothing from the checkpoint: whoever trusts no key reads no statement."""
    junk = says(FOREIGN, b"\xff\x1b[2J")
    put_signatures(folder, signatures_of(folder).own[0], junk)
    number = 1 + signatures_of(folder).own.index(junk)

    summary = ckpt.inspect(folder)

    assert [claim.key_id for claim in summary.claims] == [name_of(OLD)]
    (told,) = summary.unreadable_claims
    assert told.startswith(f"the statement of signature {number} of 2, in the name of {name_of(FOREIGN)}: found")
    assert main(["inspect", str(folder)]) == 0
    assert told in capsys.readouterr().out
    assert ckpt.verify(folder).ok
    assert ckpt.verify(folder, trust=trusting(OLD)).ok
    assert [type(fault) for fault in ckpt.verify(folder, trust=trusting(FOREIGN)).faults] == [ckpt.FormatError]


def test_the_error_says_how_far_the_best_signature_came(folder: Path) -> None:
    """A foreign one, a broken one, and one for another line: the line is what a person should hear of."""
    good = signatures_of(folder).own[0]
    put_signatures(folder, says(FOREIGN, b"x"), flipped(good, "signature"), good, says(OLD, b"\xff"))

    with pytest.raises(ckpt.WrongLineError):
        ckpt.load(folder, trust=trusting(OLD, line="search"))


# --- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
def test_a_signature_expires_by_the_clock_that_is_passed_in(reader: str, folder: Path) -> None:
    READERS[reader](folder, trusting(OLD, now=later(days=1)))

    with pytest.raises(ckpt.ExpiredSignatureError, match=r"good until 2026-07-02T12:00:00\.000\+00:00"):
        READERS[reader](folder, trusting(OLD, now=later(days=1, milliseconds=1)))


def test_a_clock_that_was_set_back_revives_nothing_below_the_floor(folder: Path) -> None:
    with pytest.raises(ckpt.ExpiredSignatureError):
        ckpt.load(folder, trust=trusting(OLD, now=later(days=-300), floor=later(days=2)))


def test_a_newer_statement_of_a_trusted_key_proves_that_time_went_on(folder: Path, tmp_path: Path) -> None:
    """One of another version lies beside it: it does not count here, but it was issued after the end of this one."""
    ckpt.save({"n": 1}, tmp_path / "newer", sign=ckpt.signer(OLD, now=lambda: later(days=2)))
    put_signatures(folder, *signatures_of(folder).own, *signatures_of(tmp_path / "newer").own)

    with pytest.raises(ckpt.ExpiredSignatureError):
        ckpt.load(folder, trust=trusting(OLD))


def test_what_was_accepted_before_may_have_expired_since_but_not_changed(folder: Path) -> None:
    seal = ckpt.read_manifest(folder).seal
    seen = trusting(OLD, now=later(days=9), seen=[seal])

    assert ckpt.load(folder, trust=seen)["n"] == 3
    _edit_manifest(folder)
    with pytest.raises(ckpt.WrongSubjectError):
        ckpt.load(folder, trust=seen)


# --- levels -------------------------------------------------------------------------------------------------------


def test_a_level_that_proves_nothing_is_an_error_with_trust(folder: Path) -> None:
    for level in ("crc32", "none"):
        for read in (ckpt.load, ckpt.open):
            with pytest.raises(ValueError, match=f"verify is '{level}' with trust; expected one of lazy, sha256"):
                read(folder, verify=level, trust=trusting(OLD))
    with pytest.raises(ValueError, match="verify is 'crc32' with trust"):
        ckpt.verify(folder, verify="crc32", trust=trusting(OLD))
    with pytest.raises(ValueError, match="verify is 'crc32' with trust"):
        ckpt.load_into(torch.nn.Linear(1, 1), folder, verify="crc32", trust=trusting(OLD))


def test_trust_takes_pem_files_and_needs_a_key(tmp_path: Path) -> None:
    keys = ckpt.keygen(tmp_path / "release.pem")
    other = ckpt.keygen(tmp_path / "other.pem")
    ckpt.save(STATE, tmp_path / "c", sign=keys.private)

    for trust in ([keys.public], [str(other.public), str(keys.public)], keys.public, str(keys.public), {keys.public}):
        assert ckpt.load(tmp_path / "c", trust=trust)["n"] == 3
    with pytest.raises(ckpt.UntrustedKeyError):
        ckpt.load(tmp_path / "c", trust=other.public)
    with pytest.raises(ValueError, match="at least one public key"):
        ckpt.load(tmp_path / "c", trust=[])
    with pytest.raises(ckpt.KeyFileError, match=r"expected an Ed25519 public key"):
        ckpt.load(tmp_path / "c", trust=keys.private)
    with pytest.raises(ValueError, match="time zone"):
        ckpt.Trust(keys=keys.public, floor=NOON.replace(tzinfo=None))


# --- the file -----------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), inside=st.booleans())
def test_any_mutation_is_refused_or_leaves_what_was_said(seed: int, inside: bool, folder: Path) -> None:
    """Of the file, sealed again; or of the statement, signed again."""
    own, choose = signatures_of(folder).own, Random(seed)
    said = statement_from_bytes(own[0].statement, "here")
    try:
        if inside:
            edit_statement(folder, lambda statement: mutate(statement, choose), key=OLD)
        else:
            rewrite_signatures(folder, lambda message: mutate(message, choose))
        with ckpt.open(folder, trust=trusting(OLD, now=later(days=-300))) as opened:
            accepted = opened.accepted
    except ckpt.CheckpointError:
        return
    finally:
        put_signatures(folder, *own)
    assert accepted is not None
    assert (accepted.subject, accepted.key_id) == (said.subject, said.key_id)
    assert inside or accepted == said


def test_signatures_lie_outside_root_and_seal_and_are_not_foreign(folder: Path, tmp_path: Path) -> None:
    plain = ckpt.save(STATE, tmp_path / "plain")
    signed = ckpt.read_manifest(folder)

    assert (signed.root, signed.seal) == (plain.root, plain.seal)
    assert (folder / "manifest.pb").read_bytes() == (tmp_path / "plain" / "manifest.pb").read_bytes()
    assert ckpt.verify(folder).foreign == ()
    ckpt.save({"n": 1}, folder, overwrite=True)
    assert not (folder / "signatures.pb").exists(), "they were the old one's"


def test_a_copy_is_signed_like_its_original(folder: Path, tmp_path: Path) -> None:
    assert ckpt.load(copied(folder, tmp_path / "copy"), trust=trusting(OLD))["n"] == 3
