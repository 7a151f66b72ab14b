"""Ed25519 keys: PEM files and key objects, the identity of a public key, and making a new pair.

Private keys are PKCS #8, public ones SubjectPublicKeyInfo (SPKI), both as PEM, so that ``openssl pkey`` reads them too.
A key's id is the SHA-256 of its SPKI: short enough to show, and never what trust rests on.
"""

import os
import re
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from ckpt.disk.commit import make_folder, naming, sync_folder
from ckpt.errors import DestinationError, KeyFileError
from ckpt.format.digests import sha256, text

PublicKey = Ed25519PublicKey | Path | str
PrivateKey = Ed25519PrivateKey | Path | str
SIGNATURE_BYTES = 64
_MAX_FILE_BYTES = 64 << 10  # a key has a few hundred; /dev/zero has no end
_P = 2**255 - 19  # of the field that the curve is over: RFC 8032, section 5.1
_D = -121665 * pow(121666, -1, _P) % _P
_EIGHTH = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_Y_OF_SMALL_ORDER = (0, 1, _P - 1, _EIGHTH, _P - _EIGHTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFiles:
    """A pair on disk. ``key_id`` is the public key's, ``sha256:…``."""

    private: Path
    public: Path
    key_id: str


def keygen(path: Path | str, *, passphrase: bytes | None = None) -> KeyFiles:
    """Make a key pair: ``NAME.pem`` signs and stays secret, ``NAME.pub.pem`` is given to those who verify.

    Args:
        path: Where the private key goes, readable by its owner alone (0600).
        passphrase: Encrypts the private key; without one whoever reads the file can sign.

    Raises:
        DestinationError: either file exists, since a key is never overwritten; or the name is that of a public key.
        ValueError: an empty passphrase.
        OSError: one of them cannot be written; neither is there then.
    """
    private = Path(path)
    _check_passphrase(passphrase)
    if private.name.endswith(".pub.pem"):
        raise DestinationError(
            f"'{private}' is named as public keys are; expected another name for the private one, such as NAME.pem, "
            "beside which NAME.pub.pem is written.",
            path=private,
        )
    public = private.with_name(private.name.removesuffix(".pem") + ".pub.pem")
    for file in (private, public):
        if os.path.lexists(file):
            raise DestinationError(
                f"'{file}' exists already; expected a new path, since what a lost key has signed can never be signed "
                "by it again. Choose another name.",
                path=file,
            )
    key = Ed25519PrivateKey.generate()
    encryption = BestAvailableEncryption(passphrase) if passphrase is not None else NoEncryption()
    folder = private.absolute().parent
    make_folder(folder)
    with ExitStack() as undo:
        _write(private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption), mode=0o600, undo=undo)
        spki = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        _write(public, spki, mode=0o666, undo=undo)
        with naming(folder):
            sync_folder(folder)
        undo.pop_all()
    return KeyFiles(private=private, public=public, key_id=text(key_id(key.public_key())))


def _write(path: Path, data: bytes, *, mode: int, undo: ExitStack) -> None:
    opener = partial(os.open, mode=mode)
    with naming(path), open(path, "xb", opener=opener) as file:
        undo.callback(path.unlink)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _check_passphrase(passphrase: bytes | None) -> None:
    if passphrase is not None and not (isinstance(passphrase, bytes) and passphrase):
        raise ValueError("the passphrase is empty, or no bytes; expected at least one byte, or None for no passphrase")


def public_keys_of(sources: Collection[PublicKey] | PublicKey) -> tuple[Ed25519PublicKey, ...]:
    """The public keys of several sources, or of the one that is given alone."""
    if isinstance(sources, str) or not isinstance(sources, Collection):
        return (public_key_of(sources),)
    return tuple(map(public_key_of, sources))


def public_key_of(source: PublicKey) -> Ed25519PublicKey:
    """The public key in a PEM file, or the one that is given.

    Raises:
        KeyFileError: the file holds no Ed25519 public key, or the key proves nothing.
        ValueError: neither a file nor a key.
        OSError: it cannot be read.
    """
    _check_source(source, Ed25519PublicKey)
    expected = "an Ed25519 public key as PEM"
    key = source if isinstance(source, Ed25519PublicKey) else _parsed(Path(source), load_pem_public_key, expected)
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(Path(str(source)), _named(key), expected)
    if not _proves(key):
        where = key.public_bytes_raw().hex() if isinstance(source, Ed25519PublicKey) else Path(source)
        raise KeyFileError(where, "no point of the curve, or one of small order", "a key that only its owner signs for")
    return key


def _proves(key: Ed25519PublicKey) -> bool:
    """Whether it is the canonical encoding of a point that is not of small order.

    ``cryptography`` takes others, and verifies under them what anybody can make (50.0.2 with OpenSSL 4.0.3).
    """
    y = int.from_bytes(key.public_bytes_raw(), "little") & ((1 << 255) - 1)
    square = (y * y - 1) * (_D * y * y + 1)  # of x, times a square
    return y < _P and y not in _Y_OF_SMALL_ORDER and pow(square, (_P - 1) // 2, _P) == 1


def private_key_of(source: PrivateKey, *, passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """The private key in a PEM file, or the one that is given.

    Raises:
        KeyFileError: the file holds no Ed25519 private key, or another passphrase opens it.
        ValueError: an empty passphrase; neither a file nor a key.
        OSError: it cannot be read.
    """
    _check_source(source, Ed25519PrivateKey)
    _check_passphrase(passphrase)
    if isinstance(source, Ed25519PrivateKey):
        return source
    expected = "an Ed25519 private key as PEM, with its passphrase where it is encrypted and none where it is not"
    key = _parsed(Path(source), lambda data: load_pem_private_key(data, passphrase), expected)
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(Path(source), _named(key), expected)
    return key


def _check_source(source: object, kind: type) -> None:
    if not isinstance(source, str | PathLike | kind):
        found = f"found a value of type {type(source).__name__} for a key"
        raise ValueError(f"{found}; expected the path of a PEM file, or an {kind.__name__}")


def _parsed(path: Path, parse: Callable[[bytes], object], expected: str) -> object:
    """What the file holds. What the library says of it is not told: it may quote from the file."""
    with open(path, "rb") as file:
        data = file.read(_MAX_FILE_BYTES)
    try:
        return parse(data)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        label = re.search(b"-----BEGIN ([A-Z0-9 ]{1,40})-----", data)
        raise KeyFileError(path, label[1].decode() if label else "nothing of that kind", expected) from None


def _named(key: object) -> str:
    return f"a key of type {type(key).__name__.lstrip('_')}"


def key_id(key: Ed25519PublicKey) -> bytes:
    """SHA-256 of the key's SPKI."""
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
