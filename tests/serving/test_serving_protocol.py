"""Each way to lie in an infer request is refused by name; what is true arrives bit for bit."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from serving.client import decode_reply, encode_request
from serving.codec import DATATYPES
from serving.errors import RequestError, ServingError
from serving.protocol import HEADER_LENGTH, MAX_JSON_DEPTH, Answer, ModelInfo, TensorInfo, encode, parse

MODEL = ModelInfo(
    name="m",
    inputs=(
        TensorInfo(name="x", datatype=DATATYPES["FP32"], row_shape=(2,)),
        TensorInfo(name="mask", datatype=DATATYPES["BOOL"], row_shape=()),
    ),
    outputs=(
        TensorInfo(name="y", datatype=DATATYPES["FP32"], row_shape=(2,)),
        TensorInfo(name="half", datatype=DATATYPES["FP16"], row_shape=()),
    ),
    max_rows=4,
)
X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2]}
MASK = {"name": "mask", "datatype": "BOOL", "shape": [1], "data": [True]}
BINARY_X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}


def request_of(*inputs: dict[str, Any], **more: Any) -> bytes:
    return orjson.dumps({"inputs": list(inputs), **more})


def parse_json(body: bytes) -> Any:
    return parse(body, header_length=None, model=MODEL)


def test_a_json_request_arrives_in_the_order_of_the_model() -> None:
    request = parse_json(request_of(MASK, X, id="seven"))

    assert request.id == "seven"
    assert request.rows == 1
    assert [array.tolist() for array in request.arrays] == [[[1.5, 2.0]], [True]]
    assert [array.dtype for array in request.arrays] == [np.float32, np.bool_]


def test_nested_and_flat_data_are_the_same() -> None:
    flat = {**X, "shape": [2, 2], "data": [1, 2, 3, 4]}
    nested = {**X, "shape": [2, 2], "data": [[1, 2], [3, 4]]}
    mask = {**MASK, "shape": [2], "data": [True, False]}

    first, second = (parse_json(request_of(x, mask)) for x in (flat, nested))

    assert first.arrays[0].tobytes() == second.arrays[0].tobytes()


LIES: list[tuple[str, bytes, str]] = [
    ("no JSON", b"{", "JSON"),
    ("NaN literal", b'{"inputs": [NaN]}', "JSON"),
    ("not UTF-8", b'{"id": "\xff"}', "JSON"),
    ("an array", b"[]", "an object"),
    ("empty body", b"", "JSON"),
    ("no inputs", b"{}", "'inputs'"),
    ("inputs no array", b'{"inputs": {}}', "'inputs'"),
    ("inputs of numbers", b'{"inputs": [1]}', "'inputs'"),
    ("no input at all", request_of(), "no 'x', 'mask'"),
    ("unknown key", request_of(X, MASK, output=[]), "key 'output'"),
    ("unknown key of an input", request_of({**X, "dtype": 1}, MASK), "key 'dtype'"),
    ("id no string", request_of(X, MASK, id=7), "'id'"),
    ("missing input", request_of(X), "no 'mask'"),
    ("unknown input", request_of(X, MASK, {**X, "name": "z"}), "'z'"),
    ("input twice", request_of(X, X, MASK), "'x' twice"),
    ("name no string", request_of({**X, "name": 1}), "'name'"),
    ("wrong datatype", request_of({**X, "datatype": "FP64"}, MASK), "'FP64', expected 'FP32'"),
    ("datatype no string", request_of({**X, "datatype": ["FP32"]}, MASK), "'datatype' of input 'x'"),
    ("wrong row shape", request_of({**X, "shape": [1, 3]}, MASK), "[1, 3], expected [rows, 2]"),
    ("rank too low", request_of({**X, "shape": [2]}, MASK), "'shape' of input 'x'"),
    ("no shape", request_of({key: X[key] for key in ("name", "datatype", "data")}, MASK), "'shape' of input 'x'"),
    ("negative rows", request_of({**X, "shape": [-1, 2]}, MASK), "'shape' of input 'x'"),
    ("no rows", request_of({**X, "shape": [0, 2], "data": []}, MASK), "'shape' of input 'x'"),
    ("too many rows", request_of({**X, "shape": [5, 2], "data": [0] * 10}, MASK), "1 to 4 rows"),
    ("a bool in the shape", request_of({**X, "shape": [True, 2]}, MASK), "'shape' of input 'x'"),
    ("a huge shape", request_of({**X, "shape": [2**62, 2]}, MASK), "'shape' of input 'x'"),
    ("unequal rows", request_of({**X, "shape": [2, 2], "data": [1, 2, 3, 4]}, MASK), "the same number of rows"),
    ("too little data", request_of({**X, "data": [1]}, MASK), "1 elements, expected 2"),
    ("too much data", request_of({**X, "data": [1, 2, 3]}, MASK), "3 elements, expected 2"),
    ("ragged data", request_of({**X, "data": [[1], [2]]}, MASK), "data of input 'x'"),
    ("nested too deep", request_of({**X, "data": [[[1, 2]]]}, MASK), "data of input 'x'"),
    ("data no array", request_of({**X, "data": "12"}, MASK), "a JSON array"),
    ("a string element", request_of({**X, "data": [1, "2"]}, MASK), "JSON type str"),
    ("a null element", request_of({**X, "data": [1, None]}, MASK), "JSON type NoneType"),
    ("a bool among floats", request_of({**X, "data": [1, True]}, MASK), "JSON type bool"),
    ("a number among bools", request_of(X, {**MASK, "data": [1]}), "JSON type int"),
    ("out of range", request_of({**X, "data": [1, 1e39]}, MASK), "outside the datatype's range"),
    ("neither data nor size", request_of({key: X[key] for key in ("name", "datatype", "shape")}, MASK), "neither"),
    ("both data and size", request_of({**X, "parameters": {"binary_data_size": 8}}, MASK), "both"),
    ("size no integer", request_of({**BINARY_X, "parameters": {"binary_data_size": True}}, MASK), "integer"),
    ("negative size", request_of({**BINARY_X, "parameters": {"binary_data_size": -8}}, MASK), "integer"),
    ("size without bytes", request_of(BINARY_X, MASK), "at most the 0 bytes"),
    ("parameters no object", request_of({**X, "parameters": []}, MASK), "'parameters' of input 'x'"),
    ("shared memory", request_of({**X, "parameters": {"shared_memory_region": "r"}}, MASK), "shared_memory_region"),
    ("a sequence", request_of(X, MASK, parameters={"sequence_id": 3}), "sequence_id"),
    ("unknown output", request_of(X, MASK, outputs=[{"name": "z"}]), "'z'"),
    ("output twice", request_of(X, MASK, outputs=[{"name": "y"}, {"name": "y"}]), "'y' twice"),
    ("classification", request_of(X, MASK, outputs=[{"name": "y", "parameters": {"classification": 2}}]), "classif"),
    ("flag no bool", request_of(X, MASK, parameters={"binary_data_output": 1}), "true or false"),
    ("outputs null", request_of(X, MASK, outputs=None), "'outputs'"),
    ("deep", b'{"parameters": {"a": ' + b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH + b"}}", "deeper nesting"),
    ("very deep", b"[" * 100_000, "JSON"),
    ("deep data", request_of(X).replace(b"[1.5,2]", b"[" * 500 + b"]" * 500), "deeper nesting"),
]


@pytest.mark.parametrize(("body", "named"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
def test_a_lie_is_refused_by_name(body: bytes, named: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_json(body)

    assert named in str(caught.value)
    assert caught.value.status == 400


@pytest.mark.parametrize("length", ["", "x", "-1", "0", "1e3", "٣", "9" * 30, "1000"])
def test_a_false_header_length_is_refused(length: str) -> None:
    with pytest.raises(RequestError, match=HEADER_LENGTH):
        parse(request_of(X, MASK), header_length=length, model=MODEL)


@pytest.mark.parametrize(
    ("size", "sent", "named"),
    [
        (8, 7, "at most the 7 bytes"),
        (8, 9, "9 bytes, expected 8 bytes"),
        (4, 4, "4 bytes, expected 8 bytes"),
        (0, 0, "0 bytes, expected 8 bytes"),
        (2**63, 8, "at most the 8 bytes"),
    ],
)
def test_binary_sizes_must_agree(size: int, sent: int, named: str) -> None:
    text = request_of({**BINARY_X, "parameters": {"binary_data_size": size}}, MASK)

    with pytest.raises(RequestError) as caught:
        parse(text + bytes(sent), header_length=str(len(text)), model=MODEL)

    assert named in str(caught.value)


def answer_of(y: np.ndarray[Any, Any], half: np.ndarray[Any, Any]) -> Answer:
    return Answer(outputs=(y, half), root="sha256:ab", version="3", generation=5, bucket=4, place=1)


FLOATS = hnp.arrays(np.float32, (3, 2), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))


@given(x=FLOATS, mask=hnp.arrays(np.bool_, (3,)), half=hnp.arrays(np.float16, (3,)))
def test_binary_tensors_travel_both_ways_bit_for_bit(x: Any, mask: Any, half: Any) -> None:
    headers, body = encode_request({"x": x, "mask": mask}, request_id="id")

    request = parse(body, header_length=headers[HEADER_LENGTH], model=MODEL)
    response = encode(answer_of(x, half), request=request, model=MODEL)
    reply = decode_reply(dict(response.headers), response.body)

    assert [array.tobytes() for array in request.arrays] == [x.tobytes(), mask.tobytes()]
    assert [reply.outputs[name].tobytes() for name in ("y", "half")] == [x.tobytes(), half.tobytes()]
    assert (reply.id, reply.root, reply.version, reply.generation) == ("id", "sha256:ab", "3", 5)
    assert (reply.bucket, reply.place) == (4, 1)


@given(x=hnp.arrays(np.float32, (2, 2), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_finite_floats_travel_as_json_bit_for_bit(x: Any) -> None:
    _, body = encode_request({"x": x, "mask": np.array([True, False])}, binary=False)
    request = parse(orjson.dumps({**orjson.loads(body), "outputs": [{"name": "y"}]}), header_length=None, model=MODEL)

    response = encode(answer_of(x, np.zeros(2, np.float16)), request=request, model=MODEL)
    reply = decode_reply(dict(response.headers), response.body)

    assert request.arrays[0].tobytes() == x.tobytes()
    assert reply.outputs["y"].tobytes() == x.tobytes()
    assert list(reply.outputs) == ["y"]


@given(st.binary(max_size=200))
def test_noise_is_refused_and_never_crashes(noise: bytes) -> None:
    with pytest.raises(RequestError):
        parse_json(noise)


@pytest.mark.parametrize("default", [False, True])
def test_an_output_overrides_the_default_of_the_request(default: bool) -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": not default}}]

    request = parse_json(request_of(X, MASK, parameters={"binary_data_output": default}, outputs=outputs))

    assert [wanted.binary for wanted in request.wanted] == [not default]


def test_json_cannot_carry_half_precision() -> None:
    request = parse_json(request_of(X, MASK))

    with pytest.raises(RequestError, match="FP16 asked for as JSON"):
        encode(answer_of(np.zeros((1, 2), np.float32), np.zeros(1, np.float16)), request=request, model=MODEL)


def test_json_does_not_turn_nan_into_null() -> None:
    request = parse_json(request_of(X, MASK, outputs=[{"name": "y"}]))

    with pytest.raises(ServingError, match="NaN or infinite"):
        encode(answer_of(np.full((1, 2), np.nan, np.float32), np.zeros(1, np.float16)), request=request, model=MODEL)


@pytest.mark.parametrize(
    ("datatype", "values", "fits"),
    [
        ("INT8", [-128, 127], True),
        ("INT8", [128], False),
        ("UINT8", [-1], False),
        ("UINT64", [2**64 - 1], True),
        ("INT64", [2**63], False),
        ("INT32", [1.0], False),
        ("FP64", [1e308], True),
        ("BF16", [1.0], False),
    ],
)
def test_json_numbers_fit_their_datatype_or_are_refused(datatype: str, values: list[Any], fits: bool) -> None:
    model = ModelInfo(
        name="m",
        inputs=(TensorInfo(name="x", datatype=DATATYPES[datatype], row_shape=()),),
        outputs=MODEL.outputs,
        max_rows=4,
    )
    body = request_of({"name": "x", "datatype": datatype, "shape": [len(values)], "data": values})

    if fits:
        assert parse(body, header_length=None, model=model).arrays[0].tolist() == values
    else:
        with pytest.raises(RequestError, match="data of input 'x'"):
            parse(body, header_length=None, model=model)
