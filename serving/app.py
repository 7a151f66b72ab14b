"""The HTTP face of a worker: raw ASGI for ``/infer``, FastAPI (``control``) for everything else.

The hot path is one coroutine without routing or models: read the body within its limit, parse, batch, encode. While a
request waits for its answer its connection is watched; when the client leaves, the request is withdrawn.

Promises: every error is a status and a body ``{"error": "..."}``; a body over the limit is refused at its declared
length, or at the byte that goes over; control calls meet the token check before anything of them is read. Nothing of
inputs or outputs is logged.
"""

import asyncio
import re
import time

from serving import protocol
from serving.asgi import Application, Receive, Scope, Send, find_header, send_error, send_response
from serving.errors import (
    BodyTooLargeError,
    EncodingError,
    MethodError,
    RequestError,
    ServingError,
    UnavailableError,
    quote,
)
from serving.guard import check_call
from serving.protocol import HEADER_LENGTH, Answer, InferRequest, Response
from serving.service import Loaded, Service
from serving.token import Token

MAX_BODY_BYTES = 64 << 20
OFF_LOOP_JSON_BYTES = 64 << 10  # parsing takes about 7 ms per MB: longer than others should wait for
CONTROL_PATHS = ("/v2/treering",)
INFER_PATH = re.compile(r"/v2/models/(?P<name>.+?)(?:/versions/(?P<version>[^/]+))?/infer")


class ClientGoneError(Exception):
    """The client closed its connection; there is nobody to answer."""


def outcome_of(error: ServingError) -> str:
    """Say how an infer request that failed is counted.

    A request that its caller got wrong is no sign of a bad version: were it counted as an error, one careless client
    could make the monitor roll back a healthy model.
    """
    if isinstance(error, UnavailableError):
        return "rejected"
    return "invalid" if isinstance(error, RequestError) else "error"


class App:
    """The ASGI application.

    Args:
        service: The worker's state.
        control: The application for all paths but infer.
        token: What control calls must carry; None refuses them all.
        max_body_bytes: The longest infer body.
    """

    def __init__(
        self, service: Service, *, control: Application, token: Token | None, max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._service = service
        self._control = control
        self._token = token
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            raise NotImplementedError(f"ASGI scope {scope['type']!r}: this application speaks HTTP only")
        match = INFER_PATH.fullmatch(scope["path"])
        try:
            if match is None:
                check_call(scope, token=self._token, guarded=CONTROL_PATHS)
                await self._control(scope, receive, send)
                return
            response = await self._counted(scope, receive, name=match["name"], version=match["version"])
        except ClientGoneError:
            return
        except ServingError as error:
            await send_error(send, error, closing=self._service.is_draining)
            return
        await send_response(send, response.body, headers=response.headers, closing=self._service.is_draining)

    async def _counted(self, scope: Scope, receive: Receive, *, name: str, version: str | None) -> Response:
        """Answer an infer request and count how it went; one whose client left is neither good nor bad."""
        started_s = time.monotonic()
        try:
            response = await self._infer(scope, receive, name=name, version=version)
        except ServingError as error:
            self._count(outcome_of(error), started_s=started_s)
            raise
        self._count("ok", started_s=started_s)
        return response

    def _count(self, status: str, *, started_s: float) -> None:
        seconds = time.monotonic() - started_s
        self._service.metrics.count_request(status, seconds=seconds, now_ms=time.time_ns() // 1_000_000)

    async def _infer(self, scope: Scope, receive: Receive, *, name: str, version: str | None) -> Response:
        loaded = self._service.find(name, version=version)
        if scope["method"] != "POST":
            raise MethodError(f"path '{scope['path']}'", found=scope["method"], expected="POST")
        encoding = find_header(scope, b"content-encoding")
        if encoding not in (None, b"identity"):
            raise EncodingError("header Content-Encoding", found=quote(encoding), expected="none")
        body = await _read_body(scope, receive, max_bytes=self._max_body_bytes)
        request = await _parse(body, header_length=find_header(scope, HEADER_LENGTH.lower().encode()), loaded=loaded)
        answer = await _answer(loaded, request, receive)
        self._service.check_version(version, found=answer.version)
        return protocol.encode(answer, request=request, model=loaded.model)


async def _parse(body: bytes, *, header_length: bytes | None, loaded: Loaded) -> InferRequest:
    """Parse a request; long JSON in a thread, so that it does not hold up the others."""
    text = None if header_length is None else header_length.decode("latin-1")
    if text is None and len(body) > OFF_LOOP_JSON_BYTES:
        return await asyncio.to_thread(protocol.parse, body, header_length=text, model=loaded.model)
    return protocol.parse(body, header_length=text, model=loaded.model)


async def _answer(loaded: Loaded, request: InferRequest, receive: Receive) -> Answer:
    """Wait for the answer or for the client to leave, whichever comes first."""
    answer = asyncio.ensure_future(loaded.batcher.submit(request))
    gone = asyncio.ensure_future(receive())  # the body is complete: all that can still come is a disconnect
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientGoneError
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


async def _read_body(scope: Scope, receive: Receive, *, max_bytes: int) -> bytes:
    """Read the whole body, up to ``max_bytes``.

    What goes over the limit is thrown away up to once the limit again, so that a client that sends before it reads
    gets to see the answer.
    """
    declared = find_header(scope, b"content-length")
    size = int(declared) if declared is not None and declared.isdigit() else 0
    parts: list[bytes] = []
    received = 0
    more = True
    while more and received <= 2 * max_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        received += len(part)
        if max(size, received) <= max_bytes:
            parts.append(part)
        more = message.get("more_body", False)
    if max(size, received) > max_bytes:
        raise BodyTooLargeError(
            "the request's body",
            found=f"{max(size, received)} bytes{' or more' if more else ''}",
            expected=f"at most {max_bytes} bytes",
            next_step="Send fewer rows in a request.",
        )
    return parts[0] if len(parts) == 1 else b"".join(parts)
