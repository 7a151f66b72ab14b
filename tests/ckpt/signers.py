"""Keys, a clock, and signatures that are edited and sealed again."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import ckpt
from ckpt.disk.folder import reading
from ckpt.format.digests import text
from ckpt.proto import signatures_pb2
from ckpt.signatures.keys import key_id
from ckpt.signatures.statements import SIGNATURES_MAGIC, Signatures, Signed, preauthenticated, signatures_in, to_bytes
from tests.hostile.edits import Edit, rewrite

# Keys of the tests: whoever reads this can sign with them.
OLD, NEW, FOREIGN = (Ed25519PrivateKey.from_private_bytes(bytes([value]) * 32) for value in (1, 2, 3))
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def noon() -> datetime:
    return NOON


def later(**units: float) -> datetime:
    return NOON + timedelta(**units)


def trusting(*keys: Ed25519PrivateKey, now: datetime = NOON, **more: object) -> ckpt.Trust:
    return ckpt.Trust(keys=[key.public_key() for key in keys], now=lambda: now, **more)  # type: ignore[arg-type]


def name_of(key: Ed25519PrivateKey) -> str:
    return text(key_id(key.public_key()))


def signatures_of(folder: Path, kind: ckpt.StatementKind = ckpt.StatementKind.CHECKPOINT) -> Signatures:
    return reading(folder, lambda opened: signatures_in(opened, kind), expected="signatures.pb")


def rewrite_signatures(folder: Path, edit: Edit) -> None:
    rewrite(folder / "signatures.pb", signatures_pb2.Signatures(), SIGNATURES_MAGIC, edit)


def put_signatures(folder: Path, *own: Signed, target: tuple[Signed, ...] = ()) -> None:
    (folder / "signatures.pb").write_bytes(to_bytes(Signatures(own=own, target=target)))


def edit_statement(folder: Path, edit: Edit, *, key: Ed25519PrivateKey | None = None) -> None:
    """Change the statement of the first signature; signed again by ``key``, or left with the old signature."""

    def change(message: signatures_pb2.Signatures) -> None:
        signature = message.signatures[0]
        statement = signatures_pb2.Statement.FromString(signature.statement)
        edit(statement)
        signature.statement = statement.SerializeToString(deterministic=True)
        if key is not None:
            signature.signature = key.sign(preauthenticated(signature.statement))

    rewrite_signatures(folder, change)


def says(key: Ed25519PrivateKey, statement: bytes) -> Signed:
    """Whatever bytes, signed by a key as if they were a statement."""
    return Signed(key_id=key_id(key.public_key()), statement=statement, signature=key.sign(preauthenticated(statement)))


def flipped(signed: Signed, field: str) -> Signed:
    """One bit of a field changed."""
    data: bytes = getattr(signed, field)
    return replace(signed, **{field: data[:-1] + bytes([data[-1] ^ 1])})  # type: ignore[arg-type]


READERS: dict[str, Callable[[Path, ckpt.Trust], object]] = {
    "load": lambda path, trust: ckpt.load(path, trust=trust),
    "load unmapped": lambda path, trust: ckpt.load(path, trust=trust, mmap=False),
    "load of one tensor": lambda path, trust: ckpt.load(path, trust=trust, keys=["bb"]),
    "open": lambda path, trust: read_all(ckpt.open(path, trust=trust)),
    "open, proved at once": lambda path, trust: read_all(ckpt.open(path, trust=trust, verify="sha256")),
    "verify": lambda path, trust: ckpt.verify(path, trust=trust).raise_on_fault(),
}


def read_all(checkpoint: ckpt.Checkpoint) -> None:
    with checkpoint:
        for name in checkpoint:
            checkpoint[name]
