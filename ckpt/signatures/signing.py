"""Make signatures, and put them beside what stands already.

A :class:`Signer` is what ``save`` and ``diff`` take, so that the signature is there when the folder appears;
:func:`sign` adds one later, :func:`unsign` takes some out. Both replace ``signatures.pb`` in one step while they hold
the folder, so that of two signers at once neither loses anything, and a reader sees the old list or the new one.
"""

import fcntl
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ckpt.deltas.wire import delta_in
from ckpt.disk.commit import naming, put_file
from ckpt.disk.folder import Folder, reading
from ckpt.errors import BadSignatureError, NotACheckpointError
from ckpt.format.digests import text
from ckpt.format.names import MANIFEST_NAME, signatures_beside
from ckpt.reading.payload import manifest_in
from ckpt.signatures.keys import PrivateKey, PublicKey, key_id, private_key_of, public_key_of, public_keys_of
from ckpt.signatures.statements import (
    MAX_LINE_BYTES,
    MAX_SIGNATURES,
    Signed,
    Statement,
    StatementKind,
    line_fault,
    milliseconds,
    preauthenticated,
    signatures_in,
    statement_from_bytes,
    statement_to_bytes,
    to_bytes,
)
from ckpt.signatures.trust import utc_now

Service = Callable[[bytes], bytes]  # what is to be signed → 64 bytes: a key that another process or machine keeps
SigningKey = PrivateKey | Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Who signs, and what the statement says beside its subject; :func:`signer` makes one."""

    service: Service
    public_key: Ed25519PublicKey
    line: str
    not_after: datetime | None
    now: Callable[[], datetime]

    def signed(self, kind: StatementKind, subject: str, path: Path) -> Signed:
        """A signature over a statement about ``subject``; ``path`` is for messages.

        Raises:
            BadSignatureError: what the service gave back is not its key's signature.
        """
        name = key_id(self.public_key)
        statement = Statement(
            kind=kind,
            subject=subject,
            line=self.line,
            issued_at=self.now(),
            not_after=self.not_after,
            key_id=text(name),
        )
        encoded = statement_to_bytes(statement)
        statement_from_bytes(encoded, "the statement to be signed")
        signature = self.service(preauthenticated(encoded))
        try:
            self.public_key.verify(signature, preauthenticated(encoded))
        except (InvalidSignature, TypeError):
            found, expected = "a signer whose answer is no signature of its statement", f"one by {text(name)}"
            raise BadSignatureError(path, found=found, expected=expected) from None
        return Signed(key_id=name, statement=encoded, signature=signature)


def signer(
    key: SigningKey,
    *,
    public_key: PublicKey | None = None,
    passphrase: bytes | None = None,
    line: str = "",
    not_after: datetime | None = None,
    now: Callable[[], datetime] = utc_now,
) -> Signer:
    """What ``save`` and ``diff`` take as ``sign``; a key alone will do there, where nothing is to be added.

    Args:
        key: A private key, as a PEM file (read now) or an object; or a callable that signs bytes, for a key service.
        public_key: Of a callable; a private key has its own.
        passphrase: Of an encrypted PEM file.
        line: The name under which versions follow each other, for example a model's; at most 256 bytes.
        not_after: After it nobody is to accept the subject anew. With time zone; None does not expire.
        now: The clock.

    Raises:
        ValueError: an impossible line or time; a callable without its public key, or a key with one.
        KeyFileError: the file holds no such key.
    """
    if fault := line_fault(line):
        raise ValueError(f"line has {fault}; expected at most {MAX_LINE_BYTES} bytes without control characters")
    if not_after is not None and milliseconds(not_after) < milliseconds(now()):
        raise ValueError(f"not_after is {not_after.isoformat()}; expected a time to come, or None")
    if not callable(key):
        if public_key is not None:
            raise ValueError("public_key is that of a callable; expected None, since the private key has its own")
        own = private_key_of(key, passphrase=passphrase)
        return Signer(service=own.sign, public_key=own.public_key(), line=line, not_after=not_after, now=now)
    if public_key is None:
        raise ValueError("public_key is None; expected that of the callable, which its answers are verified with")
    return Signer(service=key, public_key=public_key_of(public_key), line=line, not_after=not_after, now=now)


def as_signer(sign: Signer | PrivateKey) -> Signer:
    """A key alone as a :class:`Signer`."""
    return sign if isinstance(sign, Signer) else signer(sign)


def sign(
    path: Path | str,
    key: SigningKey,
    *,
    public_key: PublicKey | None = None,
    passphrase: bytes | None = None,
    line: str = "",
    not_after: datetime | None = None,
    now: Callable[[], datetime] = utc_now,
    replaces: Collection[PublicKey] | PublicKey = (),
) -> Statement:
    """Add a signature to a checkpoint or delta; nothing else of it changes.

    The statement is about what the manifest says; ``ckpt.verify`` tells whether the bytes beside it are those.

    Args:
        path: A folder, or a file that was adopted by itself.
        key, public_key, passphrase, line, not_after, now: As for :func:`signer`.
        replaces: Keys whose signatures go in the same step: an old key when it is rotated, this one to renew.

    Returns:
        What was signed.

    Raises:
        ValueError, KeyFileError: as :func:`signer`; or 64 signatures are there already.
        BadSignatureError: the answer of a callable is no signature.
        NotACheckpointError, FormatError: there is nothing to sign; nothing was changed.
    """
    who = signer(key, public_key=public_key, passphrase=passphrase, line=line, not_after=not_after, now=now)
    gone = _ids(replaces)

    def add(folder: Folder) -> Statement:
        kind, subject = _subject(folder)
        signed = who.signed(kind, subject, folder.path)
        _change(folder, kind, lambda own: {*(item for item in own if item.key_id not in gone), signed})
        return statement_from_bytes(signed.statement, "the statement that was signed")

    return reading(path, add, expected=MANIFEST_NAME)


def unsign(path: Path | str, keys: Collection[PublicKey] | PublicKey) -> int:
    """Take the signatures of some keys from a checkpoint or delta.

    This revokes nothing: whoever has kept a copy of them can put them back. Stop trusting the key for that.

    Returns:
        How many were taken out.
    """
    gone = _ids(keys)

    def remove(folder: Folder) -> int:
        kind, _ = _subject(folder)
        return _change(folder, kind, lambda own: {item for item in own if item.key_id not in gone})

    return reading(path, remove, expected=MANIFEST_NAME)


def _ids(keys: Collection[PublicKey] | PublicKey) -> set[bytes]:
    return set(map(key_id, public_keys_of(keys)))


def _subject(folder: Folder) -> tuple[StatementKind, str]:
    """What stands in a folder: a checkpoint, else a delta."""
    try:
        return StatementKind.CHECKPOINT, manifest_in(folder).seal
    except NotACheckpointError as error:
        if folder.alone:
            raise
        try:
            return StatementKind.DELTA, delta_in(folder).digest
        except NotACheckpointError:
            raise error from None


def _change(folder: Folder, kind: StatementKind, edit: Callable[[Collection[Signed]], Collection[Signed]]) -> int:
    """Replace the folder's own signatures; how many fewer there are."""
    with naming(folder.path):
        fcntl.flock(folder.descriptor, fcntl.LOCK_EX)  # until reading() closes it
    name = signatures_beside(folder.alone)
    if folder.was_replaced():
        raise folder.fault(name, "the folder", "another in its place", "the one that was read")
    before = signatures_in(folder, kind)
    own = tuple(edit(before.own))
    if len(own) > MAX_SIGNATURES:
        raise ValueError(
            f"'{folder.path}' has {len(before.own)} signatures; expected at most {MAX_SIGNATURES}. Name those that the "
            "new one replaces."
        )
    if set(own) != set(before.own):
        put_file(folder.path, folder.descriptor, name, to_bytes(replace(before, own=own)))
    return len(before.own) - len(own)
