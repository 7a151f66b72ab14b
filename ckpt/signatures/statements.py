"""Statements and their signatures, as values and as the bytes of ``signatures.pb``.

A *statement* says which checkpoint or delta is meant, in which line of versions, since when and until when. What is
signed is its bytes as they stand, with a domain and their length before them, so that a verifier parses nothing that
no trusted key has signed. ``signatures.pb`` lies beside ``manifest.pb`` or ``delta.pb`` and outside every digest:
signatures come and go and nothing else changes. Byte-level page: ``docs/formats/checkpoint.md``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from pathlib import Path

from ckpt.disk.commit import write_file
from ckpt.disk.folder import Folder
from ckpt.errors import FormatError, NotACheckpointError, VersionError
from ckpt.format.digests import SHA256_BYTES, parse, text
from ckpt.format.manifest import FORMAT_VERSION
from ckpt.format.names import SIGNATURES_NAME, signatures_beside
from ckpt.format.wire import canonical, open_envelope, seal_envelope
from ckpt.proto import signatures_pb2 as pb
from ckpt.signatures.keys import SIGNATURE_BYTES

SIGNATURES_MAGIC = b"treering-sign\r\n\x01"
DOMAIN = b"treering/statement/v1\0"
MAX_SIGNATURES = 64  # of one subject
MAX_STATEMENT_BYTES = 512
MAX_LINE_BYTES = 256
MAX_SIGNATURES_FILE_BYTES = 128 << 10  # above two full lists
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MS
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # and lone surrogates, which are no text


class StatementKind(IntEnum):
    """What a statement is about; the numbers are those of ``proto/signatures.proto``."""

    CHECKPOINT = 1
    DELTA = 2
    PROMOTION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a key says of a subject.

    Attributes:
        kind: What the subject is.
        subject: ``sha256:…``: a checkpoint's seal, a delta's digest.
        line: The name under which versions follow each other, for example a model's; may be empty.
        issued_at, not_after: UTC, whole milliseconds; ``not_after`` None: does not expire.
        key_id: Of the key that signs, ``sha256:…``.
    """

    kind: StatementKind
    subject: str
    line: str
    issued_at: datetime
    not_after: datetime | None
    key_id: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Signed:
    """A statement's bytes with a signature; ``key_id`` says which key to try."""

    key_id: bytes
    statement: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures:
    """What a ``signatures.pb`` holds: signatures of what it lies beside and, in a delta, those of its target."""

    own: tuple[Signed, ...] = ()
    target: tuple[Signed, ...] = ()


def preauthenticated(statement: bytes) -> bytes:
    """What a key signs: the domain, the length of the statement as u64 little-endian, and the statement."""
    return DOMAIN + len(statement).to_bytes(8, "little") + statement


def statement_to_bytes(statement: Statement) -> bytes:
    message = pb.Statement(
        format_version=FORMAT_VERSION,
        kind=int(statement.kind),  # type: ignore[arg-type]
        subject=parse(statement.subject),
        line=statement.line,
        issued_at_ms=milliseconds(statement.issued_at),
        not_after_ms=0 if statement.not_after is None else milliseconds(statement.not_after),
        key_id=parse(statement.key_id),
    )
    return message.SerializeToString(deterministic=True)


def statement_from_bytes(data: bytes, where: str) -> Statement:
    """Parse a statement; only one whose signature was verified says anything.

    Raises:
        FormatError: unknown fields, another encoding, or a rule is broken.
    """
    message = canonical(data, pb.Statement(), where)
    if message.format_version != FORMAT_VERSION:
        raise VersionError(f"{where}.format_version", str(message.format_version), str(FORMAT_VERSION))
    for name in ("subject", "key_id"):
        if len(getattr(message, name)) != SHA256_BYTES:
            raise FormatError(f"{where}.{name}", f"{len(getattr(message, name))} bytes", f"{SHA256_BYTES}")
    if fault := line_fault(message.line):
        raise FormatError(f"{where}.line", fault, f"at most {MAX_LINE_BYTES} bytes without control characters")
    if not message.issued_at_ms <= (message.not_after_ms or _LAST_MS) <= _LAST_MS:
        found = f"{message.issued_at_ms} to {message.not_after_ms} ms"
        raise FormatError(f"{where}.issued_at_ms, not_after_ms", found, "a time from then on, before the year 10000")
    return Statement(
        kind=_kind(message.kind, where),
        subject=text(message.subject),
        line=message.line,
        issued_at=_EPOCH + message.issued_at_ms * _MS,
        not_after=_EPOCH + message.not_after_ms * _MS if message.not_after_ms else None,
        key_id=text(message.key_id),
    )


def _kind(number: int, where: str) -> StatementKind:
    try:
        return StatementKind(number)
    except ValueError:
        raise FormatError(f"{where}.kind", str(number), f"1 … {max(StatementKind)}") from None


def milliseconds(moment: datetime) -> int:
    """Since 1970, whole.

    Raises:
        ValueError: ``moment`` has no time zone, or lies before 1970.
    """
    if moment.tzinfo is None or moment < _EPOCH:
        raise ValueError(f"{moment!r} is no moment since 1970 with a time zone; for example datetime.now(UTC) is one")
    return (moment - _EPOCH) // _MS


def line_fault(line: str) -> str | None:
    """What is wrong with the name of a line, None when nothing is."""
    if found := _CONTROL.search(line):
        return f"the character {found[0]!r} in {line!r}"
    size = len(line.encode())
    return f"{size} bytes" if size > MAX_LINE_BYTES else None


def to_bytes(signatures: Signatures) -> bytes:
    """The bytes of a ``signatures.pb``."""
    message = pb.Signatures(signatures=_messages(signatures.own), target=_messages(signatures.target))
    return seal_envelope(message, SIGNATURES_MAGIC)


def write_signatures(folder: Path, signatures: Signatures) -> None:
    """Write them into a folder that is being made, where there are any."""
    if signatures.own or signatures.target:
        write_file(folder / SIGNATURES_NAME, to_bytes(signatures))


def _messages(signatures: Sequence[Signed]) -> list[pb.Signature]:
    return [
        pb.Signature(key_id=signed.key_id, statement=signed.statement, signature=signed.signature)
        for signed in sorted(signatures)
    ]


def signatures_in(folder: Folder, kind: StatementKind) -> Signatures:
    """What lies beside the manifest or delta of an opened folder; nothing where there is no ``signatures.pb``.

    Raises:
        FormatError: it breaks a rule.
        CorruptFileError: something else than a regular file.
    """
    name = signatures_beside(folder.alone)
    try:
        data = folder.read(name, at_most=MAX_SIGNATURES_FILE_BYTES)
    except NotACheckpointError:
        if folder.was_replaced():  # it is being removed: its successor is looked at instead
            raise
        return Signatures()
    where = str(folder.place / name)
    message = open_envelope(data, pb.Signatures(), SIGNATURES_MAGIC, where)
    own, target = _values(message.signatures, where), _values(message.target, where)
    if target and kind is not StatementKind.DELTA:
        raise FormatError(where, "signatures of a target", "those of the checkpoint alone")
    return Signatures(own=own, target=target)


def _values(messages: Sequence[pb.Signature], where: str) -> tuple[Signed, ...]:
    if len(messages) > MAX_SIGNATURES:
        raise FormatError(where, f"{len(messages)} signatures", f"at most {MAX_SIGNATURES}")
    for item in messages:
        sizes = (len(item.key_id), len(item.signature))
        if sizes != (SHA256_BYTES, SIGNATURE_BYTES) or not 0 < len(item.statement) <= MAX_STATEMENT_BYTES:
            raise FormatError(
                where,
                f"{sizes[0]}, {len(item.statement)} and {sizes[1]} bytes of key id, statement and signature",
                f"{SHA256_BYTES}, at most {MAX_STATEMENT_BYTES} and {SIGNATURE_BYTES}",
            )
    values = tuple(Signed(key_id=item.key_id, statement=item.statement, signature=item.signature) for item in messages)
    if list(values) != sorted(set(values)):
        raise FormatError(
            where, "signatures out of order or twice", "each once, sorted by key id, statement, signature"
        )
    return values
