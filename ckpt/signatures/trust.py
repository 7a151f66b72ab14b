"""Whom to trust, and whether one of them vouches for what lies there.

A signature counts when a trusted key made it and its statement names the very thing: its kind, its digest, its line,
and a time that is not over. One that counts is enough; where none does, the error says how far the best one came.
:func:`accepted` is a pure function of values; clock and floor are passed in with :class:`Trust`. That a version is the
newest is no business of a signature: ``docs/decisions/0009-what-trust-promises.md``.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ckpt.errors import (
    BadSignatureError,
    CheckpointError,
    ExpiredSignatureError,
    FormatError,
    UnsignedError,
    UntrustedKeyError,
    WrongKindError,
    WrongLineError,
    WrongSubjectError,
)
from ckpt.format.digests import text
from ckpt.signatures.keys import PublicKey, key_id, public_keys_of
from ckpt.signatures.statements import (
    Signed,
    Statement,
    StatementKind,
    milliseconds,
    preauthenticated,
    statement_from_bytes,
)

# From the least to the most that a signature by a trusted key had right.
_STAGES = (
    BadSignatureError,
    FormatError,
    WrongKindError,
    WrongSubjectError,
    WrongLineError,
    ExpiredSignatureError,
)


def utc_now() -> datetime:
    """The machine's clock."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whose signatures count, and for what.

    Attributes:
        keys: Public keys, as PEM files or objects; files are read now. At least one.
        line: The line that a statement must name; None takes any.
        now: The clock.
        floor: The newest ``issued_at`` that the caller has accepted so far: a clock that was set back does not revive
            what had expired by then. Keep the new one only after all has gone well.
        seen: Seals and digests of deltas that were accepted before; their signatures may have expired since.

    Raises:
        ValueError: no key, or a floor without a time zone.
        KeyFileError: a file is no Ed25519 public key.
    """

    keys: Collection[PublicKey]
    line: str | None = None
    now: Callable[[], datetime] = utc_now
    floor: datetime | None = None
    seen: Collection[str] = ()

    def __post_init__(self) -> None:
        keys = public_keys_of(self.keys)
        if not keys:
            raise ValueError(
                "trust names no key; expected at least one public key, or trust=None to check no signature"
            )
        if self.floor is not None:
            milliseconds(self.floor)
        object.__setattr__(self, "keys", keys)

    def by_id(self) -> dict[bytes, Ed25519PublicKey]:
        """Key id → key."""
        return {key_id(key): key for key in public_keys_of(self.keys)}


Trusted = Trust | Collection[PublicKey] | PublicKey


def as_trust(trust: Trusted | None) -> Trust | None:
    """Plain keys as a :class:`Trust` in them, for any line."""
    return trust if trust is None or isinstance(trust, Trust) else Trust(keys=trust)  # type: ignore[arg-type]


def accepted(signatures: Sequence[Signed], trust: Trust, *, kind: StatementKind, subject: str, path: Path) -> Statement:
    """The newest statement that counts.

    Args:
        signatures: What lies beside the subject.
        trust: Whose signatures count.
        kind, subject: What lies there.
        path: Its place, for messages.

    Raises:
        SignatureError: none counts; which error says what the best one lacked.
        FormatError: the best one is a trusted key's signature of no statement.
    """
    keys = trust.by_id()
    if not signatures:
        raise UnsignedError(path, expected=_names(keys))
    known = [signed for signed in signatures if signed.key_id in keys]
    if not known:
        raise UntrustedKeyError(path, found=_names({item.key_id for item in signatures}), expected=_names(keys))
    statements: list[Statement] = []
    refused: list[CheckpointError] = []
    for signed in known:
        try:
            statements.append(_verified(signed, keys[signed.key_id], path))
        except CheckpointError as error:
            refused.append(error)
    time = max([trust.now(), *(item.issued_at for item in statements), *([trust.floor] if trust.floor else [])])
    objections = [_objection(item, trust, kind=kind, subject=subject, time=time, path=path) for item in statements]
    counting = [item for item, objection in zip(statements, objections, strict=True) if objection is None]
    if counting:
        return max(counting, key=lambda item: item.issued_at)
    refused += [objection for objection in objections if objection is not None]
    raise max(refused, key=lambda error: next(n for n, stage in enumerate(_STAGES) if isinstance(error, stage)))


def _verified(signed: Signed, key: Ed25519PublicKey, path: Path) -> Statement:
    """What a trusted key has said; its bytes are parsed only after the signature over them was verified."""
    name = text(signed.key_id)
    try:
        key.verify(signed.signature, preauthenticated(signed.statement))
    except InvalidSignature:
        raise BadSignatureError(
            path, found=f"a signature in the name of {name} that is not its", expected="one that its key verifies"
        ) from None
    statement = statement_from_bytes(signed.statement, f"'{path}': the statement of {name}")
    if statement.key_id != name:
        raise BadSignatureError(path, found=f"a statement in the name of {statement.key_id}", expected=f"of {name}")
    return statement


def _objection(
    statement: Statement, trust: Trust, *, kind: StatementKind, subject: str, time: datetime, path: Path
) -> CheckpointError | None:
    """Why a verified statement does not count, None when it does."""
    if statement.kind is not kind:
        return WrongKindError(path, found=statement.kind.name.lower(), expected=kind.name.lower())
    if statement.subject != subject:
        return WrongSubjectError(path, found=statement.subject, expected=subject)
    if trust.line is not None and statement.line != trust.line:
        return WrongLineError(path, found=statement.line, expected=trust.line)
    if statement.not_after is not None and statement.not_after < time and subject not in trust.seen:
        return ExpiredSignatureError(path, found=_shown(statement.not_after), expected=_shown(time))
    return None


def _names(keys: Collection[bytes]) -> str:
    names = sorted(map(text, keys))
    return f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"


def _shown(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
