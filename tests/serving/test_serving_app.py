"""The HTTP face of a worker: answers, errors, control calls, overload, disconnects."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from serving.client import decode_reply, encode_request

Play = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]

INFER = "/v2/models/tiny/infer"
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_json_and_binary_give_the_offline_answer(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            expected = r.offline(tiny.tensors(1), torch.from_numpy(X), bucket=2).numpy()
            for binary in (True, False):
                headers, body = encode_request({"x": X}, binary=binary, request_id="q1")

                response = await r.http.post(INFER, headers=headers, content=body)
                reply = decode_reply(response.headers, response.content)

                assert response.status_code == 200
                assert reply.outputs["logits"].tobytes() == expected.tobytes()
                assert (reply.id, reply.root, reply.version, reply.bucket, reply.generation) == (
                    "q1",
                    r.root,
                    "1",
                    2,
                    1,
                )
                assert response.headers["X-Treering-Root"] == r.root
                assert response.headers["X-Treering-Bucket"] == "2"
                assert response.headers["X-Treering-Generation"] == "1"
                assert ("Inference-Header-Content-Length" in response.headers) == binary

    play(scenario)


@pytest.mark.parametrize(
    ("method", "path", "status", "named"),
    [
        ("POST", "/v2/models/other/infer", 404, "'other'"),
        ("POST", "/v2/models/tiny/versions/9/infer", 404, "version '9'"),
        ("GET", INFER, 405, "POST"),
        ("HEAD", INFER, 405, ""),
        ("POST", INFER, 400, "JSON"),
        ("GET", "/v2/models/other", 404, "'other'"),
        ("GET", "/v2/models/tiny/versions/9/ready", 404, "version '9'"),
        ("GET", "/v2/nothing", 404, "/v2/nothing"),
        ("DELETE", "/v2", 405, "DELETE"),
        ("POST", "/v2/repository/index", 404, "no such path"),
    ],
)
def test_an_error_is_a_status_and_a_named_reason(
    method: str, path: str, status: int, named: str, rig: Any, play: Play
) -> None:
    async def scenario() -> None:
        async with rig() as r:
            response = await r.http.request(method, path, content=b"" if method == "POST" else None)

            assert response.status_code == status
            if method != "HEAD":
                assert list(response.json()) == ["error"]
                assert named in response.json()["error"]

    play(scenario)


def test_a_body_over_the_limit_is_refused_by_its_declared_length(rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig(max_body_bytes=1000) as r:
            response = await r.http.post(INFER, content=bytes(1001))

            assert response.status_code == 413
            assert "1001 bytes" in response.json()["error"]
            assert response.headers["connection"] == "close"

    play(scenario)


def test_a_body_over_the_limit_is_refused_without_a_declared_length(rig: Any, play: Play) -> None:
    async def chunks() -> Any:
        for _ in range(100):
            yield bytes(64)

    async def scenario() -> None:
        async with rig(max_body_bytes=1000) as r:
            response = await r.http.post(INFER, content=chunks())

            assert response.status_code == 413
            assert "at most 1000 bytes" in response.json()["error"]

    play(scenario)


def test_a_compressed_body_is_refused(rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            response = await r.http.post(INFER, content=b"x", headers={"Content-Encoding": "gzip"})

            assert response.status_code == 415
            assert "gzip" in response.json()["error"]

    play(scenario)


def test_the_model_describes_itself(rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            documents = {
                path: (await r.http.get(path)).json()
                for path in (
                    "/v2",
                    "/v2/",
                    "/v2/health/live",
                    "/v2/health/ready",
                    "/v2/models/tiny",
                    "/v2/models/tiny/versions/1",
                    "/v2/models/tiny/ready",
                    "/v2/models/tiny/config",
                )
            }

            assert documents["/v2"]["extensions"] == ["binary_tensor_data", "model_configuration", "statistics"]
            assert documents["/v2/"] == documents["/v2"]
            assert documents["/v2/health/live"] == {"live": True}
            assert documents["/v2/health/ready"] == {"live": True, "ready": True}
            assert documents["/v2/models/tiny/ready"] == {"name": "tiny", "ready": True}
            assert documents["/v2/models/tiny"] == {
                "name": "tiny",
                "versions": ["1"],
                "platform": "treering",
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
                "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}],
                "parameters": {"treering_root": r.root},
            }
            assert documents["/v2/models/tiny/versions/1"] == documents["/v2/models/tiny"]
            config = documents["/v2/models/tiny/config"]
            assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
            assert config["max_batch_size"] == 32

    play(scenario)


def test_statistics_and_metrics_count_requests_and_outputs(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            headers, body = encode_request({"x": X[:1].repeat(3, axis=0)})
            await r.http.post(INFER, headers=headers, content=body)
            await r.http.post(INFER, content=b"{")

            stats = (await r.http.get("/v2/models/stats")).json()["model_stats"][0]
            text = (await r.http.get("/metrics")).text

            y = r.offline(tiny.tensors(1), torch.from_numpy(X[:1].repeat(3, axis=0)), bucket=4).double()
            top = y.sort(dim=1, descending=True).values
            values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            assert (stats["inference_count"], stats["execution_count"]) == (3, 1)
            assert stats["inference_stats"]["success"]["count"] == 1
            assert stats["inference_stats"]["fail"]["count"] == 1
            assert values['treering_requests_total{model="tiny",status="ok"}'] == "1.0"
            assert values['treering_requests_total{model="tiny",status="invalid"}'] == "1.0"
            assert values['treering_requests_total{model="tiny",status="error"}'] == "0.0"
            assert values['treering_request_seconds_count{model="tiny"}'] == "2.0"
            assert values['treering_rows_total{model="tiny"}'] == "3.0"
            assert values['treering_batches_total{model="tiny"}'] == "1.0"
            assert values['treering_batch_rows_total{model="tiny"}'] == "3.0"
            assert values['treering_padded_rows_total{model="tiny"}'] == "1.0"
            assert values['treering_queue_seconds_count{model="tiny"}'] == "1.0"
            assert values['treering_batch_seconds_count{model="tiny"}'] == "1.0"
            assert values['treering_output_values_total{model="tiny"}'] == "9.0"
            assert values['treering_output_nonfinite_total{model="tiny"}'] == "0.0"
            assert float(values['treering_output_sum{model="tiny"}']) == pytest.approx(y.sum().item())
            assert float(values['treering_output_square_sum{model="tiny"}']) == pytest.approx(y.square().sum().item())
            assert float(values['treering_margin_sum{model="tiny"}']) == pytest.approx(
                (top[:, 0] - top[:, 1]).sum().item()
            )
            assert values[f'treering_predictions_total{{class="{int(y[0].argmax())}",model="tiny"}}'] == "3.0"
            assert values['nv_inference_count{model="tiny"}'] == "3.0"
            assert values['nv_inference_request_success{model="tiny"}'] == "1.0"
            assert values['nv_inference_request_failure{model="tiny"}'] == "1.0"

    play(scenario)


def test_non_finite_outputs_are_counted_and_do_not_spoil_the_sums(rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            x = np.full((1, 4), np.inf, dtype=np.float32)
            headers, body = encode_request({"x": x})

            response = await r.http.post(INFER, headers=headers, content=body)
            text = (await r.http.get("/metrics")).text

            assert not np.isfinite(decode_reply(response.headers, response.content).outputs["logits"]).all()
            assert 'treering_output_nonfinite_total{model="tiny"} 3.0' in text
            assert 'treering_output_sum{model="tiny"} 0.0' in text

    play(scenario)


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic a-token-of-the-tests", "Bearer é"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/treering/models/tiny"),
        ("POST", "/v2/treering/models/tiny/stage"),
        ("POST", "/v2/treering/models/tiny/flip"),
        ("POST", "/v2/treering/models/tiny/undo"),
    ],
)
def test_control_calls_need_the_token(method: str, path: str, header: str | None, rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            headers = {} if header is None else {"Authorization": header.encode()}
            response = await r.http.request(method, path, headers=headers, content=b"not even JSON")

            assert response.status_code == 401
            assert "Authorization" in response.json()["error"]

    play(scenario)


def test_an_update_over_http(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, root = r.shelf.put("v2", tiny.tensors(2))
            base = "/v2/treering/models/tiny"

            async def call(name: str, **body: str) -> Any:
                return await r.http.post(f"{base}/{name}", json=body, headers=tiny.authorized)

            staged = await call("stage", folder=str(folder), root=root, seal=r.shelf.seal(folder), version="2")
            flipped = await call("flip", root=root)
            standing = await r.http.get(base, headers=tiny.authorized)
            undone = await call("undo", root=root)
            nothing_left = await call("undo", root=r.root)
            not_staged = await call("flip", root="sha256:" + "0" * 64)

            assert (staged.json()["outcome"], staged.json()["staged_root"]) == ("staged", root)
            assert flipped.json()["outcome"] == "flipped"
            assert flipped.json()["seconds"] > 0
            assert standing.json() == {
                "root": root,
                "version": "2",
                "generation": 2,
                "staged_root": None,
                "previous_root": r.root,
            }
            assert (undone.json()["outcome"], undone.json()["root"]) == ("undone", r.root)
            assert (nothing_left.status_code, not_staged.status_code) == (409, 409)

    play(scenario)


DIGEST = b"sha256:" + b"a" * 64


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "body"),
        (b"{}", "body.folder"),
        (b'{"folder": "/x", "root": "sha256:ab", "version": "2"}', "body.root"),
        (b'{"folder": "/x", "root": "' + DIGEST + b'", "version": "2"}', "body.seal"),
        (b'{"folder": "/x", "root": "' + DIGEST + b'", "seal": "' + DIGEST + b'", "version": 2}', "body.version"),
        (
            b'{"folder": "/x", "root": "' + DIGEST + b'", "seal": "' + DIGEST + b'", "version": "2", "force": true}',
            "body.force",
        ),
    ],
)
def test_a_malformed_control_call_is_refused_by_its_field(
    body: bytes, named: str, rig: Any, tiny: Any, play: Play
) -> None:
    async def scenario() -> None:
        async with rig() as r:
            headers = {**tiny.authorized, "Content-Type": "application/json"}
            response = await r.http.post("/v2/treering/models/tiny/stage", content=body, headers=headers)

            assert response.status_code == 400
            assert f"'{named}" in response.json()["error"]

    play(scenario)


def test_a_long_control_call_is_refused_unread(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            response = await r.http.post(
                "/v2/treering/models/tiny/stage", content=bytes(70_000), headers=tiny.authorized
            )

            assert response.status_code == 413

    play(scenario)


def test_one_bad_item_in_a_batch_fails_alone(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            poison = np.full((1, 4), tiny.poison, dtype=np.float32)
            requests = [encode_request({"x": x}) for x in (X, poison, X)]

            good, bad, also_good = await asyncio.gather(
                *(r.http.post(INFER, headers=headers, content=body) for headers, body in requests)
            )

            expected = r.offline(tiny.tensors(1), torch.from_numpy(X), bucket=2).numpy().tobytes()
            assert bad.status_code == 500
            assert "IndexError" in bad.json()["error"]
            for response in (good, also_good):
                assert decode_reply(response.headers, response.content).outputs["logits"].tobytes() == expected

    play(scenario)


def test_overload_is_answered_503_with_retry_after(rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig(wait_bound_s=1.0) as r:
            for _ in range(100):
                for bucket in r.engine.buckets:
                    r.batcher.table = r.batcher.table.observed(bucket, 1.0)
            leave, running = threading.Event(), threading.Event()

            def hold() -> None:
                running.set()
                assert leave.wait(timeout=30)

            r.program.gate = hold
            headers, body = encode_request({"x": np.zeros((32, 4), dtype=np.float32)})
            first = asyncio.create_task(r.http.post(INFER, headers=headers, content=body))
            await asyncio.to_thread(running.wait, 30)
            queued = [asyncio.create_task(r.http.post(INFER, headers=headers, content=body)) for _ in range(4)]
            done, _ = await asyncio.wait(queued, return_when=asyncio.FIRST_COMPLETED)
            leave.set()
            responses = await asyncio.gather(first, *queued)

            statuses = [response.status_code for response in responses]
            refused = next(iter(done)).result()
            assert statuses[0] == 200
            assert statuses.count(503) >= 2
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) >= 1
            assert "predicted wait" in refused.json()["error"]
            assert f'status="rejected"}} {float(statuses.count(503))}' in r.service.metrics.text().decode()

    play(scenario)


def test_the_request_of_a_client_that_left_is_not_computed(rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            leave, running = threading.Event(), threading.Event()
            computed = []

            def hold() -> None:
                computed.append(1)
                running.set()
                assert leave.wait(timeout=30)

            r.program.gate = hold
            headers, body = encode_request({"x": X})
            first = asyncio.create_task(r.http.post(INFER, headers=headers, content=body))
            await asyncio.to_thread(running.wait, 30)

            gone = asyncio.create_task(_post_and_leave(r, headers, body))
            await gone
            leave.set()
            response = await first

            assert response.status_code == 200
            assert len(computed) == 1
            assert 'treering_rows_total{model="tiny"} 2.0' in r.service.metrics.text().decode()

    play(scenario)


def test_a_request_for_a_version_is_not_answered_by_the_one_that_follows_it(rig: Any, tiny: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            folder, root = r.shelf.put("v2", tiny.tensors(2))
            await r.stage(folder, root=root, version="2")
            leave, running = threading.Event(), threading.Event()

            def hold() -> None:
                running.set()
                assert leave.wait(timeout=30)

            r.program.gate = hold
            headers, body = encode_request({"x": X})
            path = "/v2/models/tiny/versions/1/infer"
            first = asyncio.create_task(r.http.post(path, headers=headers, content=body))
            await asyncio.to_thread(running.wait, 30)
            second = asyncio.create_task(r.http.post(path, headers=headers, content=body))
            while not r.batcher._queue:
                await asyncio.sleep(0)
            flip = asyncio.create_task(r.updater.flip(root))
            for _ in range(5):  # the exchange is now in line behind the running batch, before the next one
                await asyncio.sleep(0)
            leave.set()
            await flip

            answered = await first
            assert (answered.status_code, decode_reply(answered.headers, answered.content).version) == (200, "1")
            assert (await second).status_code == 404
            assert "version '2' live" in (await second).json()["error"]

    play(scenario)


async def _post_and_leave(r: Any, headers: dict[str, str], body: bytes) -> None:
    """Send a request by hand and disconnect once it waits; nothing may be sent back."""
    messages = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        if len(messages) == 1:
            while not r.batcher._queue:  # the request has joined the queue
                await asyncio.sleep(0)
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError(f"sent {message['type']} to a client that left")

    lines = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
    await r.app({"type": "http", "method": "POST", "path": INFER, "headers": lines}, receive, send)


def test_a_worker_that_loads_is_live_and_not_ready(rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            loaded, r.service.loaded = r.service.loaded, None
            headers, body = encode_request({"x": X})

            live = await r.http.get("/v2/health/live")
            ready = await r.http.get("/v2/health/ready")
            infer = await r.http.post(INFER, headers=headers, content=body)
            r.service.loaded = loaded

            assert live.status_code == 200
            assert (ready.status_code, ready.json()) == (503, {"live": True, "ready": False})
            assert infer.status_code == 503
            assert infer.headers["Retry-After"] == "1"

    play(scenario)


def test_a_worker_that_drains_answers_and_closes(rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            r.service.is_draining = True
            headers, body = encode_request({"x": X})

            ready = await r.http.get("/v2/health/ready")
            infer = await r.http.post(INFER, headers=headers, content=body)

            assert ready.status_code == 503
            assert infer.status_code == 200
            assert infer.headers["connection"] == "close"

    play(scenario)


def test_a_large_json_body_is_answered(rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            x = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
            document = orjson.loads(encode_request({"x": x}, binary=False)[1])
            document["inputs"][0]["data"] = [float(value) for value in x.astype(np.float64).ravel()]
            body = orjson.dumps(document) + b" " * 70_000

            response = await r.http.post(INFER, content=body)

            assert response.status_code == 200
            assert response.json()["outputs"][0]["shape"] == [32, 3]

    play(scenario)


def test_the_control_face_documents_itself(rig: Any, play: Play) -> None:
    async def scenario() -> None:
        async with rig() as r:
            paths = (await r.http.get("/openapi.json")).json()["paths"]

            assert "/v2/treering/models/{name}/stage" in paths
            assert "/metrics" in paths

    play(scenario)
