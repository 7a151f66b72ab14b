"""The door of control calls: the bearer token and the longest body, checked before a call is read.

Promises: the token comes from a file or the environment, never from a command line, where every user of the machine
could read it; it is compared in constant time; without a token control calls are refused, not open.
"""

import hmac
import os
from pathlib import Path

from serving.asgi import Application, Receive, Scope, Send, find_header, send_error
from serving.errors import BodyTooLargeError, ServingError, StartError, UnauthorizedError, quote

TOKEN_VARIABLE = "TREERING_TOKEN"
MIN_TOKEN_CHARACTERS = 16
MAX_CALL_BYTES = 64 << 10


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


def check_call(scope: Scope, *, token: str | None, guarded: tuple[str, ...]) -> None:
    """Check a call by its ASGI scope: the token where the path begins with ``guarded``, and the length of any body.

    Raises:
        UnauthorizedError: A guarded path without the token.
        BodyTooLargeError: The body is longer than ``MAX_CALL_BYTES``, or of undeclared length.
    """
    if scope["path"].startswith(guarded):
        check_token(find_header(scope, b"authorization"), token=token)
    length = find_header(scope, b"content-length") or b"0"
    if find_header(scope, b"transfer-encoding") is not None:
        length = b"none"
    if not length.isdigit() or int(length) > MAX_CALL_BYTES:
        raise BodyTooLargeError(
            "header Content-Length", found=quote(length.decode("latin-1")), expected=f"at most {MAX_CALL_BYTES} bytes"
        )


class Guarded:
    """An ASGI application behind :func:`check_call`: guarded paths need the token.

    Args:
        app: What answers calls that pass.
        token: The token; None refuses guarded calls.
        paths: Beginnings of the guarded paths.
    """

    def __init__(self, app: Application, *, token: str | None, paths: tuple[str, ...]) -> None:
        self._app = app
        self._token = token
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call, or refuse it."""
        try:
            check_call(scope, token=self._token, guarded=self._paths)
        except ServingError as error:
            await send_error(send, error)
            return
        await self._app(scope, receive, send)
