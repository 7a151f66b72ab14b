"""The door of control calls: the bearer token and the longest body, checked before a call is read.

Promises: the token comes from a file or the environment, never from a command line, where every user of the machine
could read it; it is compared in constant time; without a token control calls are refused, not open.
"""

import hmac
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from serving.errors import BodyTooLargeError, StartError, UnauthorizedError, quote

TOKEN_VARIABLE = "TREERING_TOKEN"
MIN_TOKEN_CHARACTERS = 16
MAX_CALL_BYTES = 64 << 10
WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")

Scope = MutableMapping[str, Any]


def read_token(file: Path | None) -> str | None:
    """Read the token from ``file``, or from the environment variable ``TREERING_TOKEN``; None when neither is given.

    Raises:
        StartError: The file cannot be read, or the token is shorter than ``MIN_TOKEN_CHARACTERS``.
    """
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE)
        if token is None:
            return None
        thing = f"the environment variable {TOKEN_VARIABLE}"
    else:
        thing = f"token file '{file}'"
        try:
            token = file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(thing, found=str(error), expected="a readable line of ASCII") from error
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise StartError(
            thing,
            found=f"{len(token)} characters",
            expected=f"at least {MIN_TOKEN_CHARACTERS}",
            next_step="Write one with: python -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE",
        )
    return token


def check_token(header: bytes | None, *, token: str | None) -> None:
    """Compare an Authorization header with the worker's token.

    Raises:
        UnauthorizedError: There is no token to compare with, or the header does not carry it.
    """
    if token is None:
        raise UnauthorizedError(
            "control calls", found="no token on this side", expected="one", next_step="Start with --token-file."
        )
    given = header or b""
    if not hmac.compare_digest(given, b"Bearer " + token.encode("ascii")):
        raise UnauthorizedError(
            "header Authorization", found="nothing" if header is None else "another value", expected="'Bearer TOKEN'"
        )


def check_call(scope: Scope, *, token: str | None, guarded: str) -> None:
    """Check a call by its ASGI scope: the token where the path begins with ``guarded``, and the length of any body.

    Raises:
        UnauthorizedError: A guarded path without the token.
        BodyTooLargeError: The declared length is missing or above ``MAX_CALL_BYTES``.
    """
    if scope["path"].startswith(guarded):
        check_token(find_header(scope, b"authorization"), token=token)
    if scope["method"] in WITHOUT_BODY:
        return
    length = find_header(scope, b"content-length") or b""
    if not length.isdigit() or int(length) > MAX_CALL_BYTES:
        raise BodyTooLargeError(
            "header Content-Length", found=quote(length.decode("latin-1")), expected=f"at most {MAX_CALL_BYTES} bytes"
        )


def find_header(scope: Scope, name: bytes) -> bytes | None:
    """Find a header by its lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None
