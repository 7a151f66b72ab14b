"""The other reader's Ed25519 gives the answers of ``cryptography``, and both readers take the same keys."""

from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ckpt
import treering_reader
from ckpt.signatures.keys import public_key_of
from tests.ckpt.signed_vectors import MIXED, ORDER_8, L, P, hashed, scalar
from tests.ckpt.signers import OLD
from treering_reader import ed25519

KEYS = st.binary(min_size=32, max_size=32)


def point(data: bytes) -> ed25519.Point:
    found = ed25519.decoded(data)
    assert found is not None
    return found


def by_cryptography(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def taken(key: bytes) -> bool:
    try:
        public_key_of(Ed25519PublicKey.from_public_bytes(key))
    except ckpt.KeyFileError:
        return False
    return True


def taken_by_the_other(key: bytes) -> bool:
    found = ed25519.decoded(key)
    return found is not None and not ed25519.of_small_order(found)


def number(value: int) -> bytes:
    return value.to_bytes(32, "little")


SMALL = [ed25519.encoded(ed25519.times(factor, point(ORDER_8))) for factor in range(8)]
# Encodings of points of small order that are not the canonical ones: y beyond p, or the sign of an x that is 0.
LAX = [number(y | sign << 255) for y in (P, P + 1) for sign in (0, 1)] + [
    number(1 | 1 << 255),
    number(P - 1 | 1 << 255),
]


def test_there_are_eight_points_of_small_order() -> None:
    assert len(set(SMALL)) == 8
    assert SMALL[0] == number(1)
    assert ed25519.encoded(ed25519.added(point(OLD.public_key().public_bytes_raw()), point(ORDER_8))) == MIXED


@pytest.mark.parametrize("key", [*SMALL, *LAX, number(2), number(P + 3), number(2**255 - 1)], ids=bytes.hex)
def test_no_reader_takes_a_key_that_proves_nothing(key: bytes) -> None:
    assert not taken(key)
    assert not taken_by_the_other(key)


@pytest.mark.parametrize("key", SMALL, ids=bytes.hex)
def test_cryptography_verifies_under_a_key_of_small_order_what_anybody_can_make(key: bytes) -> None:
    """Why such a key is refused before: one of these sixteen texts has the signature that needs no secret."""
    signatures = [r + bytes(32) for r in SMALL]

    assert any(by_cryptography(key, signature, bytes([text])) for signature in signatures for text in range(16))


@settings(max_examples=300, deadline=None)
@given(key=KEYS)
@example(key=MIXED)
def test_both_take_the_same_keys(key: bytes) -> None:
    assert taken(key) == taken_by_the_other(key)


@settings(max_examples=300, deadline=None)
@given(
    secret=KEYS,
    message=st.binary(max_size=64),
    place=st.integers(0, 511),
    kind=st.sampled_from(["whole", "flipped", "s + L", "s + 2L", "another text"]),
)
def test_of_any_signature_both_say_the_same(secret: bytes, message: bytes, place: int, kind: str) -> None:
    private = Ed25519PrivateKey.from_private_bytes(secret)
    key, signature = private.public_key().public_bytes_raw(), private.sign(message)
    s = int.from_bytes(signature[32:], "little")
    if kind == "flipped":
        signature = (int.from_bytes(signature, "little") ^ 1 << place).to_bytes(64, "little")
    elif kind.startswith("s"):
        signature = signature[:32] + number(s + L * kind.count("2") + L)
    shown = message + b"x" if kind == "another text" else message

    assert ed25519.verified(key, signature, shown) == by_cryptography(key, signature, shown) == (kind == "whole")


@settings(max_examples=200, deadline=None)
@given(message=st.binary(max_size=8), factor=st.integers(0, 7), torsion=st.integers(0, 7))
def test_points_of_small_order_in_a_signature_or_key_change_no_answer(
    message: bytes, factor: int, torsion: int
) -> None:
    """A key and an R with parts of small order, and the s that a verifier with cofactor would take."""

    def moved(data: bytes, times: int) -> bytes:
        return ed25519.encoded(ed25519.added(point(data), point(SMALL[times])))

    key = moved(OLD.public_key().public_bytes_raw(), factor)
    r = moved(ed25519.encoded(ed25519.times(7, ed25519.BASE)), torsion)
    h = hashed(r, key, message)
    signature = r + number((7 + h * scalar(OLD)) % L)

    fits = (torsion + h * factor) % 8 == 0
    assert ed25519.verified(key, signature, message) == by_cryptography(key, signature, message) == fits


PEM = (
    b"-----BEGIN PUBLIC KEY-----",
    b"MCowBQYDK2VwAyEAiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=",
    b"-----END PUBLIC KEY-----",
)
FORMS = {
    "as it is written": (b"\n".join(PEM), True),
    "other ends of lines": (b"\r\n".join(PEM), True),
    "text around it": (b"Our key of 2026:\n" + b"\n".join(PEM) + b"\nthat is all\xff", True),
    "lines of another length": (b"\n".join([PEM[0], PEM[1][:20], PEM[1][20:], PEM[2]]), True),
    "no base64": (b"\n".join([PEM[0], PEM[1][:20] + b"!" + PEM[1][20:], PEM[2]]), False),
    "no filling at its end": (b"\n".join([PEM[0], PEM[1].rstrip(b"="), PEM[2]]), False),
    "no end": (b"\n".join(PEM[:2]), False),
    "two ends": (b"\n".join(PEM).replace(b"END PUBLIC", b"END RSA PUBLIC"), False),
    "another label": (b"\n".join(PEM).replace(b"PUBLIC KEY", b"CERTIFICATE"), False),
    "a block before it": (b"-----BEGIN X-----\nAA==\n-----END X-----\n" + b"\n".join(PEM), False),
    "a byte after it": (b"\n".join([PEM[0], PEM[1].replace(b"w=", b"wA")]) + b"\n" + PEM[2], False),
    "nothing": (b"", False),
}


@pytest.mark.parametrize("form", FORMS)
def test_both_take_the_same_files_for_keys(form: str, tmp_path: Path) -> None:
    content, expected = FORMS[form]
    file = tmp_path / "k.pub.pem"
    file.write_bytes(content)

    if expected:
        assert treering_reader.public_key(str(file)) == OLD.public_key().public_bytes_raw()
        assert public_key_of(file) == OLD.public_key()
        return
    with pytest.raises(treering_reader.FaultError, match="key-file"):
        treering_reader.public_key(str(file))
    with pytest.raises(ckpt.KeyFileError):
        public_key_of(file)
