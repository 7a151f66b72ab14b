"""The Open Inference Protocol v2: one request read, one response written.

Promises: a request that leaves ``parse`` is complete (each input once, the model's datatype and shape, the same number
of rows in all), or a RequestError names the thing, what was found and what was expected. JSON and Triton's binary
tensors (``Inference-Header-Content-Length``) may be mixed in one request, and are answered per output as asked. Every
response names the root, bucket, place and generation that made it, as headers and as ``parameters``.

What a model *is* (metadata, configuration, statistics) is written by ``describe``; HTTP itself belongs to ``app``.

Source: kserve/open-inference-protocol, specification/protocol/inference_rest.md; Triton's binary data extension
(docs/protocol/extension_binary_data.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from serving import codec
from serving.codec import Array, Datatype
from serving.errors import RequestError, quote

MAX_JSON_DEPTH = 100
HEADER_LENGTH = "Inference-Header-Content-Length"
REQUEST_KEYS = frozenset({"id", "parameters", "inputs", "outputs"})
INPUT_KEYS = frozenset({"name", "shape", "datatype", "parameters", "data"})
OUTPUT_KEYS = frozenset({"name", "parameters"})
REFUSED_PARAMETERS = ("shared_memory_region", "classification", "sequence_id")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """An input or output; dimension 0 counts rows, ``row_shape`` is the rest."""

    name: str
    datatype: Datatype
    row_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a request is checked against."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    max_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedOutput:
    """An output asked for: its position among the model's outputs, and how it shall travel."""

    position: int
    binary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """A checked request; ``arrays`` are in the order of the model's inputs, each with ``rows`` rows."""

    id: str | None
    rows: int
    arrays: tuple[Array, ...]
    wanted: tuple[WantedOutput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outputs of one request and what made them; ``outputs`` are in the order of the model's outputs.

    ``place`` is the row of the bucket at which the request's rows begin: with root and bucket it says all that the
    bits depend on.
    """

    outputs: tuple[Array, ...]
    root: str
    version: str
    generation: int
    bucket: int
    place: int


def parse(body: bytes, *, header_length: str | None, model: ModelInfo) -> InferRequest:
    """Read an infer request.

    Args:
        body: The whole HTTP body.
        header_length: The value of ``Inference-Header-Content-Length``, or None when the body is JSON alone.
        model: What the request must fit.

    Raises:
        RequestError: The first thing that does not fit.
    """
    json_bytes = len(body) if header_length is None else _read_header_length(header_length, body_bytes=len(body))
    document = _read_json(memoryview(body)[:json_bytes])
    inputs = _list_of_objects(document, "inputs", allowed=INPUT_KEYS)
    arrays = _read_inputs(inputs, binary=memoryview(body)[json_bytes:], model=model)
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) != 1:
        raise RequestError("the inputs", found=f"rows {rows}", expected="the same number of rows in each")
    return InferRequest(
        id=_read_id(document),
        rows=next(iter(rows.values())),
        arrays=tuple(arrays[info.name] for info in model.inputs),
        wanted=_read_outputs(document, model=model),
    )


def _read_header_length(text: str, *, body_bytes: int) -> int:
    length = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not 0 < length <= body_bytes:
        raise RequestError(
            f"header {HEADER_LENGTH}",
            found=quote(text),
            expected=f"the length of the JSON part, 1 to {body_bytes} (the body's length)",
        )
    return length


def _read_json(text: memoryview) -> Json:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RequestError("the request's JSON", found=str(error), expected="a JSON document") from error
    if not isinstance(document, dict):
        raise RequestError("the request's JSON", found=type(document).__name__, expected="an object")
    _refuse_unknown_keys(document, "the request", allowed=REQUEST_KEYS)
    _refuse_deep(document)
    return document


def _refuse_deep(document: object) -> None:
    """Bound the nesting level by level; what lies deeper is not looked at."""
    level = [document]
    for _ in range(MAX_JSON_DEPTH):
        children: list[object] = []
        for item in level:
            if isinstance(item, dict):
                children.extend(item.values())
            elif isinstance(item, list) and item and isinstance(item[0], (list, dict)):
                children.extend(item)
        if not children:
            return
        level = children
    raise RequestError("the request's JSON", found="deeper nesting", expected=f"at most {MAX_JSON_DEPTH} levels")


def _refuse_unknown_keys(entry: Json, thing: str, *, allowed: frozenset[str]) -> None:
    unknown = sorted(set(entry) - allowed)
    if unknown:
        raise RequestError(thing, found=f"key {quote(unknown[0])}", expected=f"only {', '.join(sorted(allowed))}")


def _list_of_objects(document: Json, key: str, *, allowed: frozenset[str]) -> list[Json]:
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        found = "nothing" if key not in document else type(entries).__name__
        raise RequestError(f"'{key}' of the request", found=found, expected="an array of objects")
    for entry in entries:
        name = entry.get("name")
        if not isinstance(name, str):
            raise RequestError(f"'name' of an entry of '{key}'", found=quote(name), expected="a string")
        _refuse_unknown_keys(entry, f"entry {quote(name)} of '{key}'", allowed=allowed)
    return entries


def _read_id(document: Json) -> str | None:
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise RequestError("'id' of the request", found=quote(request_id), expected="a string")
    return request_id


def _read_parameters(entry: Json, thing: str) -> Json:
    parameters = entry.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError(f"'parameters' of {thing}", found=type(parameters).__name__, expected="an object")
    for key in REFUSED_PARAMETERS:
        if parameters.get(key):
            raise RequestError(f"'parameters' of {thing}", found=f"'{key}'", expected="a request without it")
    return parameters


def _read_flag(parameters: Json, key: str, thing: str, *, default: bool) -> bool:
    flag = parameters.get(key, default)
    if not isinstance(flag, bool):
        raise RequestError(f"parameter '{key}' of {thing}", found=quote(flag), expected="true or false")
    return flag


def _read_inputs(entries: list[Json], *, binary: memoryview, model: ModelInfo) -> dict[str, Array]:
    """Read each input once; the binary parts lie one after another in the order of the entries."""
    known = {info.name: info for info in model.inputs}
    arrays: dict[str, Array] = {}
    offset = 0
    for entry in entries:
        name = entry["name"]
        if name not in known or name in arrays:
            found = f"{quote(name)} twice" if name in arrays else quote(name)
            raise RequestError("the inputs", found=found, expected=f"each of {_names(model.inputs)} once")
        shape = _read_shape(entry, info=known[name], max_rows=model.max_rows)
        size_bytes = _binary_size(entry)
        if size_bytes is None:
            arrays[name] = codec.from_json(entry.get("data"), name=name, datatype=known[name].datatype, shape=shape)
            continue
        part = binary[offset : offset + size_bytes]
        if len(part) != size_bytes:
            raise RequestError(
                f"'binary_data_size' of input {quote(name)}",
                found=f"{size_bytes} bytes",
                expected=f"at most the {len(part)} bytes that are left in the body",
            )
        offset += size_bytes
        arrays[name] = codec.from_binary(part, name=name, datatype=known[name].datatype, shape=shape)
    if offset != len(binary):
        raise RequestError(
            "the binary part of the body",
            found=f"{len(binary)} bytes",
            expected=f"{offset} bytes, the sum of 'binary_data_size' over the inputs",
        )
    missing = [info for info in model.inputs if info.name not in arrays]
    if missing:
        raise RequestError("the inputs", found=f"no {_names(missing)}", expected=f"each of {_names(model.inputs)} once")
    return arrays


def _names(infos: tuple[TensorInfo, ...] | list[TensorInfo]) -> str:
    return ", ".join(quote(info.name) for info in infos)


def _binary_size(entry: Json) -> int | None:
    """Return the size of an input that lies in the binary part; None when it lies in the JSON."""
    thing = f"input {quote(entry['name'])}"
    size_bytes = _read_parameters(entry, thing).get("binary_data_size")
    if (size_bytes is None) == ("data" not in entry):
        found = "neither 'data' nor 'binary_data_size'" if size_bytes is None else "both 'data' and 'binary_data_size'"
        raise RequestError(thing, found=found, expected="exactly one of them")
    if size_bytes is not None and (type(size_bytes) is not int or size_bytes < 0):
        raise RequestError(f"'binary_data_size' of {thing}", found=quote(size_bytes), expected="an integer ≥ 0")
    return size_bytes


def _read_shape(entry: Json, *, info: TensorInfo, max_rows: int) -> tuple[int, ...]:
    thing = f"input {quote(info.name)}"
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if datatype != info.datatype.name:
        raise RequestError(f"'datatype' of {thing}", found=quote(datatype), expected=f"'{info.datatype.name}'")
    fits = (
        isinstance(shape, list)
        and all(type(size) is int for size in shape)
        and tuple(shape[1:]) == info.row_shape
        and len(shape) == 1 + len(info.row_shape)
        and 1 <= shape[0] <= max_rows
    )
    if not fits:
        wanted = ", ".join(["rows", *map(str, info.row_shape)])
        raise RequestError(f"'shape' of {thing}", found=quote(shape), expected=f"[{wanted}] with 1 to {max_rows} rows")
    return tuple(entry["shape"])


def _read_outputs(document: Json, *, model: ModelInfo) -> tuple[WantedOutput, ...]:
    """Read which outputs are wanted and how; without 'outputs' all are."""
    thing = "the request"
    default = _read_flag(_read_parameters(document, thing), "binary_data_output", thing, default=False)
    if "outputs" not in document:
        return tuple(WantedOutput(position=position, binary=default) for position in range(len(model.outputs)))
    positions = {info.name: position for position, info in enumerate(model.outputs)}
    wanted: dict[str, WantedOutput] = {}
    for entry in _list_of_objects(document, "outputs", allowed=OUTPUT_KEYS):
        name = entry["name"]
        if name not in positions or name in wanted:
            found = f"{quote(name)} twice" if name in wanted else quote(name)
            raise RequestError("the outputs", found=found, expected=f"of {_names(model.outputs)}, each at most once")
        thing = f"output {quote(name)}"
        binary = _read_flag(_read_parameters(entry, thing), "binary_data", thing, default=default)
        wanted[name] = WantedOutput(position=positions[name], binary=binary)
    return tuple(wanted.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response: headers in addition to the length, and the body."""

    headers: tuple[tuple[str, str], ...]
    body: bytes


def encode(answer: Answer, *, request: InferRequest, model: ModelInfo) -> Response:
    """Write the answer as the request wants it.

    Raises:
        RequestError, ServingError: An output that JSON cannot carry was asked for as JSON.
    """
    outputs, binary = [], []
    for wanted in request.wanted:
        info, array = model.outputs[wanted.position], answer.outputs[wanted.position]
        entry: Json = {"name": info.name, "datatype": info.datatype.name, "shape": list(array.shape)}
        if wanted.binary:
            binary.append(np.ascontiguousarray(array).tobytes())
            entry["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            entry["data"] = codec.to_json(array, name=info.name, datatype=info.datatype)
        outputs.append(entry)
    document: Json = {
        "model_name": model.name,
        "model_version": answer.version,
        "parameters": {
            "treering_root": answer.root,
            "treering_bucket": answer.bucket,
            "treering_place": answer.place,
            "treering_generation": answer.generation,
        },
        "outputs": outputs,
    }
    if request.id is not None:
        document["id"] = request.id
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = [
        ("Content-Type", "application/octet-stream" if binary else "application/json"),
        ("X-Treering-Root", answer.root),
        ("X-Treering-Bucket", str(answer.bucket)),
        ("X-Treering-Place", str(answer.place)),
        ("X-Treering-Generation", str(answer.generation)),
    ]
    if binary:
        headers.append((HEADER_LENGTH, str(len(text))))
    return Response(headers=tuple(headers), body=b"".join([text, *binary]))
