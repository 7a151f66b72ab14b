"""The door of control calls: the bearer token and the longest body, checked before a call is read.

Promises: the token is compared in constant time; without one on this side, control calls are refused, not open. Where
it comes from is ``token``'s matter.
"""

import hmac
import logging

from serving.asgi import Application, Receive, Scope, Send, find_header, send_error
from serving.errors import BodyTooLargeError, ServingError, TokenError, UnauthorizedError, quote
from serving.token import Token

MAX_CALL_BYTES = 64 << 10

log = logging.getLogger(__name__)


def check_token(header: bytes | None, *, token: Token | None) -> None:
    """Compare an Authorization header with the worker's token.

    Raises:
        UnauthorizedError: There is no token to compare with, or the header does not carry it.
    """
    given = header or b""
    if not hmac.compare_digest(given, b"Bearer " + _known(token)):
        raise UnauthorizedError(
            "header Authorization", found="nothing" if header is None else "another value", expected="'Bearer TOKEN'"
        )


def _known(token: Token | None) -> bytes:
    """The token on this side; what is wrong with its file stands in the log, not in the answer to a stranger."""
    found, next_step = "no token on this side", "Start with --token-file."
    if token is not None:
        try:
            return token.current().encode("ascii")
        except TokenError as error:
            log.error("%s", error)
            found, next_step = "a token on this side that cannot be used", "Why stands in the log of this process."
    raise UnauthorizedError("control calls", found=found, expected="one", next_step=next_step)


def check_call(scope: Scope, *, token: Token | None, guarded: tuple[str, ...]) -> None:
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

    def __init__(self, app: Application, *, token: Token | None, paths: tuple[str, ...]) -> None:
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
