"""Conformance vectors of signatures: a signed checkpoint, what is done to its copy, whom a reader trusts, what it says.

``old`` has signed it for the line mnist without an end, ``new`` for the same line until a day after noon.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import ckpt
from ckpt.proto import signatures_pb2
from ckpt.signatures.keys import key_id
from ckpt.signatures.statements import Signed, preauthenticated
from tests.ckpt.bad_vectors_files import Change, changed, doing, forge_chunk, manifest, rehash_header, replaced
from tests.ckpt.bad_vectors_manifests import Lie
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
)
from tests.ckpt.vector_states import CHECKPOINT
from tests.hostile.edits import put, rewrite_manifest

ACCEPTED = "accepted"
P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
ORDER_8 = bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a")
MIXED = bytes.fromhex("9ea3f11f5bd34f0cd7147fd0a436c088f624c6100c1df6a53c0a29e05d60cea0")  # old and ORDER_8 added
NEUTRAL = (1).to_bytes(32, "little")
Act = Callable[[Path], object]


def scalar(key: Ed25519PrivateKey) -> int:
    """What the private bytes multiply the base point by."""
    low = int.from_bytes(hashlib.sha512(key.private_bytes_raw()).digest()[:32], "little")
    return low & ((1 << 254) - 8) | 1 << 254


def hashed(r: bytes, key: bytes, message: bytes) -> int:
    return int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % L


RAW_KEYS = {
    "old": OLD.public_key().public_bytes_raw(),
    "new": NEW.public_key().public_bytes_raw(),
    "foreign": FOREIGN.public_key().public_bytes_raw(),
    "mixed-order": MIXED,
    "neutral": NEUTRAL,
    "order-8": ORDER_8,
    "not-canonical": (P + 3).to_bytes(32, "little"),
    "no-point": (2).to_bytes(32, "little"),
}


def key_files() -> dict[str, bytes]:
    """The keys of the vectors as PEM, by the name of their file."""
    another = X25519PrivateKey.from_private_bytes(bytes(range(32))).public_key()
    found = {name: Ed25519PublicKey.from_public_bytes(raw) for name, raw in RAW_KEYS.items()} | {"x25519": another}
    return {
        f"{name}.pub.pem": key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        for name, key in found.items()
    }


def own(change: Callable[[Signed, Signed], list[Signed]]) -> Act:
    """Other signatures in the place of the two that lie there; ``change`` gets that of old and that of new."""

    def apply(folder: Path) -> None:
        before = {signed.key_id: signed for signed in signatures_of(folder).own}
        put_signatures(folder, *change(before[key_id(OLD.public_key())], before[key_id(NEW.public_key())]))

    return doing(apply)


def alone(change: Callable[[Signed], Signed]) -> Act:
    """That of old by itself, changed."""
    return own(lambda old, new: [change(old)])


def restated(*, key: Ed25519PrivateKey | None = OLD, **fields: object) -> Act:
    """The statement of old by itself with other fields, signed again by ``key`` or not at all."""

    def apply(folder: Path) -> None:
        alone(lambda old: old)(folder)
        edit_statement(folder / CHECKPOINT, lambda statement: put(statement, **fields), key=key)

    return apply


def with_s(signed: Signed, change: Callable[[int], int]) -> Signed:
    s = int.from_bytes(signed.signature[32:], "little")
    return replace(signed, signature=signed.signature[:32] + change(s).to_bytes(32, "little"))


def with_r(signed: Signed, r: bytes) -> Signed:
    """Signed again by old with an R that is, or that a lax reader takes for, the neutral element."""
    h = hashed(r, OLD.public_key().public_bytes_raw(), preauthenticated(signed.statement))
    return replace(signed, signature=r + (h * scalar(OLD) % L).to_bytes(32, "little"))


def under(raw: bytes, signed: Signed, *, issued_at_ms: int) -> Signed:
    """The statement of a signature in the name of another key, not signed."""
    named = key_id(Ed25519PublicKey.from_public_bytes(raw))
    statement = signatures_pb2.Statement.FromString(signed.statement)
    put(statement, key_id=named, issued_at_ms=issued_at_ms)
    return Signed(key_id=named, statement=statement.SerializeToString(deterministic=True), signature=bytes(64))


def of_mixed_order(signed: Signed, *, fits: bool) -> Signed:
    """By a key with a part of order 8: without cofactor its signature fits where 8 divides h, one time in eight."""
    r = NEW.public_key().public_bytes_raw()
    for issued_at_ms in range(1, 1000):
        made = under(MIXED, signed, issued_at_ms=issued_at_ms)
        h = hashed(r, MIXED, preauthenticated(made.statement))
        if (h % 8 == 0) is fits:
            return replace(made, signature=r + ((scalar(NEW) + h * scalar(OLD)) % L).to_bytes(32, "little"))
    raise AssertionError("one of eight fits")


def by_nobody(signed: Signed) -> Signed:
    """What anybody can sign in the name of the neutral element."""
    return replace(under(NEUTRAL, signed, issued_at_ms=1), signature=NEUTRAL + bytes(32))


def signed_as(change: Change) -> Act:
    """Signed by old over something else than a domain, the length and the statement."""
    return alone(lambda old: replace(old, signature=OLD.sign(change(preauthenticated(old.statement)))))


def forged_digests(folder: Path) -> None:
    """Other bytes, and all that the manifest says of them."""
    forge_chunk(folder)
    (file,) = folder.glob("weights-*")
    digest = hashlib.sha256(file.read_bytes()[-8:]).digest()
    rewrite_manifest(folder, lambda message: put(message.storages[0], sha256=digest))


def signed_elsewhere(**options: Any) -> Signed:
    """What old says of another checkpoint."""
    with TemporaryDirectory() as scratch:
        ckpt.save({"w": torch.zeros(2)}, Path(scratch, "c"), sign=ckpt.signer(OLD, line="mnist", **options))
        return signatures_of(Path(scratch, "c")).own[0]


def junk(old: Signed) -> list[Signed]:
    """What takes nothing from a statement that counts."""
    return [says(FOREIGN, b"x"), flipped(old, "signature"), flipped(old, "statement"), says(OLD, b"\xff")]


def trusting(*keys: str, line: str | None = "mnist", **after: float) -> dict[str, Any]:
    return {"keys": list(keys), "line": line, "at": later(**after).isoformat()}


TRUST = trusting("old")
BOTH = trusting("old", "new")
CASES: dict[str, tuple[str, dict[str, Any], Act]] = {
    "signed-by-a-trusted-key": (ACCEPTED, TRUST, lambda folder: None),
    "signed-until-this-moment": (ACCEPTED, trusting("new", days=1), lambda folder: None),
    "signed-for-any-line": (ACCEPTED, trusting("old", line=None), lambda folder: None),
    "signed-by-one-of-those-trusted": (ACCEPTED, trusting("foreign", "old"), lambda folder: None),
    "signed-again": (
        ACCEPTED,
        TRUST,
        doing(lambda folder: ckpt.sign(folder, OLD, line="mnist", now=lambda: later(hours=1))),
    ),
    "signed-by-the-next-key": (ACCEPTED, BOTH, own(lambda old, new: [new])),
    "signed-with-junk-beside": (ACCEPTED, trusting("old", "foreign"), own(lambda old, new: [old, new, *junk(old)])),
    "signed-with-a-neutral-r": (ACCEPTED, TRUST, alone(lambda old: with_r(old, NEUTRAL))),
    "signed-by-a-key-of-mixed-order": (
        ACCEPTED,
        trusting("mixed-order"),
        alone(lambda old: of_mixed_order(old, fits=True)),
    ),
    # forged content
    "a-signed-chunk-with-a-right-crc": ("chunk-sha256", TRUST, doing(forge_chunk)),
    "a-signed-chunk-with-right-digests": ("wrong-subject", TRUST, doing(forged_digests)),
    "a-name-swapped-in-a-signed-header": ("header-mismatch", TRUST, changed("weights-*", replaced(b'"w"', b'"v"'))),
    "a-signed-header-swapped-and-hashed": (
        "header-mismatch",
        TRUST,
        doing(lambda folder: rehash_header(folder, replaced(b'"w"', b'"v"'))),
    ),
    "metadata-added-to-what-was-signed": (
        "wrong-subject",
        TRUST,
        manifest(lambda message: message.metadata.add(key="accuracy", value="1.0")),
    ),
    # signatures that do not count
    "no-signatures": ("unsigned", TRUST, doing(lambda folder: (folder / "signatures.pb").unlink())),
    "a-list-without-signatures": ("unsigned", TRUST, own(lambda old, new: [])),
    "signed-by-a-foreign-key": ("untrusted-key", trusting("foreign"), lambda folder: None),
    "a-signature-replayed": ("wrong-subject", TRUST, own(lambda old, new: [signed_elsewhere(now=noon)])),
    "a-signature-of-a-delta": ("wrong-kind", TRUST, restated(kind=2)),
    "a-signature-of-a-promotion": ("wrong-kind", TRUST, restated(kind=3)),
    "signed-for-another-line": ("wrong-line", trusting("old", line="search"), lambda folder: None),
    "signed-for-a-line-where-none-is-meant": ("wrong-line", trusting("old", line=""), lambda folder: None),
    "the-best-of-several-is-told": (
        "wrong-line",
        trusting("old", "foreign", line="search"),
        own(lambda old, new: [old, *junk(old)]),
    ),
    "a-signature-that-expired": ("expired-signature", trusting("new", days=1, milliseconds=1), lambda folder: None),
    "a-clock-that-was-set-back": (
        "expired-signature",
        BOTH,
        own(lambda old, new: [new, signed_elsewhere(now=lambda: later(days=2))]),
    ),
    # signatures that are none
    "a-line-renamed": ("bad-signature", TRUST, restated(key=None, line="search")),
    "an-end-put-off": ("bad-signature", TRUST, restated(key=None, not_after_ms=1 << 41)),
    "a-foreign-signature-in-a-trusted-name": ("bad-signature", TRUST, restated(key=FOREIGN)),
    "a-statement-in-another-name": ("bad-signature", TRUST, restated(key_id=bytes(32))),
    "a-flipped-bit-of-r": (
        "bad-signature",
        TRUST,
        alone(lambda old: replace(old, signature=bytes([old.signature[0] ^ 1]) + old.signature[1:])),
    ),
    "a-flipped-bit-of-s": ("bad-signature", TRUST, alone(lambda old: with_s(old, lambda s: s ^ 1))),
    "a-malleable-signature": ("bad-signature", TRUST, alone(lambda old: with_s(old, lambda s: s + L))),
    "a-neutral-r-with-a-sign": (
        "bad-signature",
        TRUST,
        alone(lambda old: with_r(old, (1 | 1 << 255).to_bytes(32, "little"))),
    ),
    "a-neutral-r-beyond-p": ("bad-signature", TRUST, alone(lambda old: with_r(old, (P + 1).to_bytes(32, "little")))),
    "signed-by-a-key-of-mixed-order-with-a-cofactor": (
        "bad-signature",
        trusting("mixed-order"),
        alone(lambda old: of_mixed_order(old, fits=False)),
    ),
    "signed-in-another-domain": ("bad-signature", TRUST, signed_as(replaced(b"/v1", b"/v2"))),
    "signed-without-a-length": ("bad-signature", TRUST, signed_as(lambda data: data[:22] + data[30:])),
    "signed-without-a-domain": ("bad-signature", TRUST, signed_as(lambda data: data[22:])),
    "a-statement-cut-short": (
        "bad-signature",
        TRUST,
        alone(lambda old: replace(old, statement=old.statement[:-1])),
    ),
    # statements that are none
    "a-statement-cut-short-and-signed": (
        "malformed-protobuf",
        TRUST,
        alone(lambda old: says(OLD, old.statement[:-1])),
    ),
    "a-statement-with-an-unknown-field": (
        "unknown-field",
        TRUST,
        alone(lambda old: says(OLD, old.statement + b"\x40\x01")),
    ),
    "a-statement-in-another-encoding": (
        "not-canonical",
        TRUST,
        alone(lambda old: says(OLD, old.statement[:2] + old.statement)),
    ),
    "a-statement-of-version-2": ("unknown-version", TRUST, restated(format_version=2)),
    "a-statement-of-an-unknown-kind": ("statement", TRUST, restated(kind=9)),
    "a-statement-about-half-a-subject": ("statement", TRUST, restated(subject=bytes(31))),
    "a-line-with-control-characters": ("statement", TRUST, restated(line="a\x1b[2Jb")),
    "a-line-of-258-bytes": ("statement", TRUST, restated(line="é" * 129)),
    "an-end-before-its-beginning": ("statement", TRUST, restated(not_after_ms=1)),
    "an-end-beyond-all-calendars": ("statement", TRUST, restated(not_after_ms=253402300800000)),
    "a-beginning-beyond-all-calendars": ("statement", TRUST, restated(issued_at_ms=253402300800000)),
    # keys that prove nothing
    "a-key-that-anybody-signs-for": ("key-file", trusting("neutral"), alone(by_nobody)),
    "a-key-of-order-8": ("key-file", trusting("order-8"), lambda folder: None),
    "a-key-that-is-not-canonical": ("key-file", trusting("not-canonical"), lambda folder: None),
    "a-key-that-is-no-point": ("key-file", trusting("no-point"), lambda folder: None),
    "a-key-of-another-algorithm": ("key-file", trusting("x25519"), lambda folder: None),
}
TRUSTS = {name: trust for name, (_, trust, _) in CASES.items()}


def lies() -> dict[str, Lie]:
    return {name: (word, "signed", act) for name, (word, _, act) in CASES.items()}
