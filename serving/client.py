"""A typed client of a worker, for flows, tests and load; and the protocol's client side as two pure functions.

``encode_request`` and ``decode_reply`` write and read bodies without doing any I/O, so that ``Client`` (one blocking
connection pool) and ``load`` (many requests at once) share them. A status other than 200 is a CallError with the
worker's own words; a worker that cannot be reached is an UnreachableError.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import numpy as np
import orjson

from serving.codec import BY_TORCH_NAME, DATATYPES, Array, Datatype
from serving.errors import CallError, UnreachableError
from serving.protocol import HEADER_LENGTH, Json
from serving.token import Bearer, Token

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer: the outputs by name, and what made them."""

    outputs: Mapping[str, Array]
    root: str
    version: str
    bucket: int
    place: int
    generation: int
    id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a worker says of its model after a control call, or when asked."""

    root: str
    version: str
    generation: int
    staged_root: str | None
    previous_root: str | None
    outcome: str = "noop"
    seconds: float = 0.0


def encode_request(
    inputs: Mapping[str, Array], *, binary: bool = True, request_id: str | None = None
) -> tuple[dict[str, str], bytes]:
    """Write an infer request; outputs are asked for in the same form as the inputs go.

    Args:
        inputs: Arrays by input name; dimension 0 counts rows.
        binary: Raw bytes, or JSON numbers.
        request_id: Echoed in the reply.

    Returns:
        HTTP headers and body.
    """
    entries, parts = [], []
    for name, array in inputs.items():
        entry: Json = {"name": name, "datatype": _datatype(array).name, "shape": list(array.shape)}
        if binary:
            parts.append(np.ascontiguousarray(array).tobytes())
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = np.ascontiguousarray(array).reshape(-1)
        entries.append(entry)
    document: Json = {"inputs": entries, "parameters": {"binary_data_output": binary}}
    if request_id is not None:
        document["id"] = request_id
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = {"Content-Type": "application/octet-stream" if binary else "application/json"}
    if binary:
        headers[HEADER_LENGTH] = str(len(text))
    return headers, b"".join([text, *parts])


def decode_reply(headers: Mapping[str, str], body: bytes) -> Reply:
    """Read a reply with status 200."""
    json_bytes = int(headers.get(HEADER_LENGTH, len(body)))
    document = orjson.loads(body[:json_bytes])
    outputs: dict[str, Array] = {}
    offset = json_bytes
    for entry in document["outputs"]:
        wire, shape = DATATYPES[entry["datatype"]].wire, entry["shape"]
        if "data" in entry:
            outputs[entry["name"]] = np.array(entry["data"], dtype=wire).reshape(shape)
        else:
            end = offset + entry["parameters"]["binary_data_size"]
            outputs[entry["name"]] = np.frombuffer(body[offset:end], dtype=wire).reshape(shape)
            offset = end
    made = document["parameters"]
    return Reply(
        outputs=outputs,
        root=made["treering_root"],
        version=document["model_version"],
        bucket=made["treering_bucket"],
        place=made["treering_place"],
        generation=made["treering_generation"],
        id=document.get("id"),
    )


def _datatype(array: Array) -> Datatype:
    return BY_TORCH_NAME[array.dtype.name]


class Client:
    """Calls one worker; use it in a ``with`` block.

    Args:
        url: For example ``http://127.0.0.1:8000``.
        model: The model's name.
        token: For control calls.
        timeout_s: For each call.
    """

    def __init__(self, url: str, *, model: str, token: Token | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        self._model = f"/v2/models/{model}"
        self._control = f"/v2/treering/models/{model}"
        auth = None if token is None else Bearer(token)
        # Workers are addressed directly: a proxy from the environment would stand between a fleet and its own machine.
        self._http = httpx.Client(base_url=url, auth=auth, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def infer(self, inputs: Mapping[str, Array], *, binary: bool = True, request_id: str | None = None) -> Reply:
        """Ask for the outputs of some rows.

        Raises:
            CallError, UnreachableError: See the head of this module.
        """
        headers, body = encode_request(inputs, binary=binary, request_id=request_id)
        response = self._call("POST", f"{self._model}/infer", headers=headers, content=body)
        return decode_reply(response.headers, response.content)

    def is_ready(self) -> bool:
        """Whether the worker takes requests; False too when it cannot be reached."""
        try:
            self._call("GET", "/v2/health/ready")
        except (CallError, UnreachableError):
            return False
        return True

    def metadata(self) -> Json:
        """Return the model's inputs and outputs, as the protocol writes them."""
        return self._json("GET", self._model)

    def metrics(self) -> str:
        """Return the Prometheus text."""
        return self._call("GET", "/metrics").text

    def standing(self) -> Standing:
        """Return what is live, staged and previous."""
        return Standing(**self._json("GET", self._control))

    def stage(self, folder: Path, *, root: str, seal: str, version: str) -> Standing:
        """Have a checkpoint folder verified and built beside traffic."""
        call = {"folder": str(folder), "root": root, "seal": seal, "version": version}
        return Standing(**self._json("POST", f"{self._control}/stage", json=call))

    def flip(self, root: str) -> Standing:
        """Make the staged root live."""
        return Standing(**self._json("POST", f"{self._control}/flip", json={"root": root}))

    def undo(self, suspect: str) -> Standing:
        """Go back to the previous root if ``suspect`` is live."""
        return Standing(**self._json("POST", f"{self._control}/undo", json={"root": suspect}))

    def _json(self, method: str, path: str, **parts: Any) -> Json:
        document: Json = self._call(method, path, **parts).json()
        return document

    def _call(self, method: str, path: str, **parts: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **parts)
        except httpx.TransportError as error:
            raise UnreachableError(
                f"worker {self.url}", found=f"{type(error).__name__}: {error}", expected="an answer"
            ) from error
        raise_for_status(response)
        return response


def raise_for_status(response: httpx.Response) -> None:
    """Raise what a status other than 200 means.

    Raises:
        CallError: With the worker's own words.
    """
    if response.status_code == httpx.codes.OK:
        return
    try:
        text = str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        text = response.text
    raise CallError(
        f"{response.request.method} {response.request.url}",
        found=f"status {response.status_code}: {text}",
        expected="status 200",
        status_code=response.status_code,
        retry_after_s=_seconds(response.headers.get("Retry-After")),
    )


def _seconds(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
