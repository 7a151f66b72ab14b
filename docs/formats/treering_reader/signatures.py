"""Who vouches for a checkpoint: the list beside the manifest, the statements in it, and whether a trusted one counts.

One statement that counts is enough. Where none does, the fault is that of the signature that had most right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from treering_reader import ed25519, envelope, wire
from treering_reader.digests import shown
from treering_reader.faults import FaultError, demand
from treering_reader.folder import Folder
from treering_reader.keys import key_id
from treering_reader.schema import SIGNATURES, STATEMENT, Signature, Signatures, Statement

FILE_AT_MOST = 128 << 10
SIGNATURES_AT_MOST = 64
STATEMENT_AT_MOST, LINE_AT_MOST = 512, 256
KINDS = {1: "checkpoint", 2: "delta", 3: "promotion"}
_DOMAIN = b"treering/statement/v1\0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEYOND_MS = 253402300800000  # the year 10000
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")
_STAGES = ("bad-signature", "statement", "wrong-kind", "wrong-subject", "wrong-line", "expired-signature")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whose signatures count: ``keys`` as 32 bytes each, for a ``line`` (None: any), ``at`` a time with time zone."""

    keys: Sequence[bytes]
    line: str | None = None
    at: datetime


def listed(folder: Folder, name: str) -> tuple[Signature, ...]:
    """The signatures beside the manifest, the form of their list checked."""
    if not folder.has(name):
        return ()
    content = folder.read(name, at_most=FILE_AT_MOST)
    parsed: Signatures = wire.parse(envelope.opened(content, envelope.SIGNATURES), SIGNATURES)
    found = [(item.key_id, item.statement, item.signature) for item in parsed.signatures]
    lengths = all(
        len(key) == 32 and 1 <= len(text) <= STATEMENT_AT_MOST and len(sign) == 64 for key, text, sign in found
    )
    ordered = all(first < second for first, second in pairwise(found))
    if parsed.target or not lengths or not ordered or len(found) > SIGNATURES_AT_MOST:
        raise FaultError("signature-list", f"{name}: {len(found)} signatures that break a rule of their list")
    return parsed.signatures


def accepted(signatures: Sequence[Signature], seal: str, trust: Trust) -> Statement:
    """The newest statement that counts for the checkpoint of a seal.

    Raises:
        FaultError: none counts.
    """
    demand(len(signatures) > 0, "unsigned", "there is no signature")
    keys = {key_id(key): key for key in trust.keys}
    known = [signature for signature in signatures if signature.key_id in keys]
    demand(len(known) > 0, "untrusted-key", f"signed by {shown(signatures[0].key_id)}, which is not trusted")
    statements, faults = [], []
    for signature in known:
        try:
            statements.append(_verified(signature, keys[signature.key_id]))
        except FaultError as fault:
            faults.append(fault)
    time = max([trust.at, *(moment(statement.issued_at_ms) for statement in statements)])
    counting = []
    for statement in statements:
        try:
            _check(statement, seal, trust.line, time)
            counting.append(statement)
        except FaultError as fault:
            faults.append(fault)
    if not counting:
        raise max(faults, key=lambda fault: _STAGES.index(fault.kind if fault.kind in _STAGES else "statement"))
    return max(counting, key=lambda statement: statement.issued_at_ms)


def _verified(signature: Signature, key: bytes) -> Statement:
    """What a key has said, parsed only after its signature was verified."""
    length = len(signature.statement).to_bytes(8, "little")
    sound = ed25519.verified(key, signature.signature, _DOMAIN + length + signature.statement)
    demand(sound, "bad-signature", f"it is none by {shown(signature.key_id)}")
    statement: Statement = wire.parse(signature.statement, STATEMENT)
    version = statement.format_version
    demand(version == 1, "unknown-version", f"a statement of version {version}, this reader knows 1")
    for name in ("subject", "key_id"):
        demand(len(getattr(statement, name)) == 32, "statement", f"{name} has {len(getattr(statement, name))} bytes")
    plain = len(statement.line.encode()) <= LINE_AT_MOST and not _CONTROL.search(statement.line)
    demand(plain, "statement", f"the line is {statement.line[:80]!r}")
    demand(statement.kind in KINDS, "statement", f"its kind is {statement.kind}")
    begin, end = statement.issued_at_ms, statement.not_after_ms
    demand(begin <= (end or begin) and max(begin, end) < _BEYOND_MS, "statement", f"its time is {begin} to {end} ms")
    demand(statement.key_id == signature.key_id, "bad-signature", f"its statement names {shown(statement.key_id)}")
    return statement


def _check(statement: Statement, seal: str, line: str | None, time: datetime) -> None:
    demand(statement.kind == 1, "wrong-kind", f"it is about a {KINDS[statement.kind]}")
    subject = shown(statement.subject)
    demand(subject == seal, "wrong-subject", f"{subject} is signed, {seal} lies there")
    demand(line in (None, statement.line), "wrong-line", f"signed for {statement.line!r}, expected {line!r}")
    over = statement.not_after_ms != 0 and moment(statement.not_after_ms) < time
    demand(not over, "expired-signature", f"good until {moment(statement.not_after_ms)}, it is {time}")


def moment(since_1970_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=since_1970_ms)
