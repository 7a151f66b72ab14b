"""Files of signatures that break a rule of their format; forged statements are what the tests of ``ckpt`` are about."""

import os
import shutil
from pathlib import Path

import torch

import ckpt
from ckpt.signatures.statements import MAX_SIGNATURES
from tests.ckpt.signers import NEW, OLD, later, noon, put_signatures, rewrite_signatures, says, signatures_of
from tests.hostile.edits import put
from tests.hostile.lies import Lie, Look
from tests.hostile.lying_envelopes import body
from tests.hostile.lying_folders import tricked

LISTS: dict[str, Lie] = {
    "a short key id": Lie(lambda m: put(m.signatures[0], key_id=b"x"), "1, 93 and 64 bytes"),
    "a short signature": Lie(lambda m: put(m.signatures[0], signature=b"x"), "and 1 bytes"),
    "an empty statement": Lie(lambda m: put(m.signatures[0], statement=b""), "32, 0 and 64"),
    "a long statement": Lie(lambda m: put(m.signatures[0], statement=bytes(513)), "32, 513 and 64"),
    "an entry twice": Lie(lambda m: m.signatures.add().CopyFrom(m.signatures[0]), "out of order or twice"),
    "signatures of a target": Lie(lambda m: m.target.add().CopyFrom(m.signatures[0]), "found signatures of a target"),
}


def save_signed(folder: Path) -> None:
    """``victim``, signed."""
    who = ckpt.signer(OLD, line="mnist", now=noon, not_after=later(days=1))
    ckpt.save({"aa": torch.arange(8.0), "bb": torch.zeros(8)}, folder / "victim", sign=who)


def _unsorted(folder: Path) -> None:
    put_signatures(folder, signatures_of(folder).own[0], says(NEW, b"x"))
    rewrite_signatures(folder, lambda message: put(message, signatures=list(message.signatures)[::-1]))


def _file(folder: Path) -> Path:
    return folder / "signatures.pb"


def _too_many(folder: Path) -> None:
    put_signatures(folder, *(says(OLD, bytes([number + 1])) for number in range(MAX_SIGNATURES + 1)))


SIGNATURES: dict[str, Lie] = tricked("signatures.pb", found_by=Look.MANIFEST) | {
    "a manifest": Lie(lambda folder: shutil.copy(folder / "manifest.pb", _file(folder)), "expected the magic"),
    "a million entries": Lie(lambda folder: body(lambda _: b"\x0a\x00" * 10**6)(_file(folder)), "than 131072 bytes"),
    "as many entries as fit": Lie(
        lambda folder: body(lambda _: b"\x0a\x00" * 65000)(_file(folder)), "65000 signatures"
    ),
    "a byte above the limit": Lie(lambda folder: os.truncate(_file(folder), (128 << 10) + 1), "than 131072 bytes"),
    "one entry too many": Lie(_too_many, "65 signatures"),
    "entries out of order": Lie(_unsorted, "out of order or twice"),
}
