"""The little of ASGI that this package speaks by hand: types, finding a header, sending a whole response.

Responses have their length; errors have the body ``{"error": "..."}``, which is all that clients of the protocol read.
"""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import orjson

from serving.errors import BodyTooLargeError, MethodError, ServingError, UnavailableError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def find_header(scope: Scope, name: bytes) -> bytes | None:
    """Find a header by its lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


async def send_response(
    send: Send, body: bytes, *, status: int = 200, headers: Sequence[tuple[str, str]], closing: bool = False
) -> None:
    """Send a whole response; ``closing`` asks for the connection to be closed after it."""
    lines = [(key.lower().encode(), value.encode()) for key, value in headers]
    lines.append((b"content-length", str(len(body)).encode()))
    if closing:
        lines.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ServingError, *, closing: bool = False) -> None:
    """Send an error with its status; after a body that was not read to its end the connection is closed."""
    headers = [("Content-Type", "application/json")]
    if isinstance(error, UnavailableError):
        headers.append(("Retry-After", str(error.retry_after_s)))
    if isinstance(error, MethodError):
        headers.append(("Allow", "POST"))
    closing = closing or isinstance(error, BodyTooLargeError)
    await send_response(
        send, orjson.dumps({"error": str(error)}), status=error.status, headers=headers, closing=closing
    )
