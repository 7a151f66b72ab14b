"""A real worker process: real program, real checkpoints, real HTTP, hot updates under load."""

import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import ckpt
from serving.client import Client, encode_request
from serving.errors import CallError
from serving.load import run_load, summarize
from serving.token import Token

ROW_GROUPS = [range(start, start + count) for start, count in ((0, 1), (1, 2), (3, 3), (6, 5), (0, 12))]


def client_of(url: str, token: str | None = None) -> Client:
    return Client(url, model="mini", token=Token(token) if token else None)


def inputs_of(shop: Any, rows: range) -> dict[str, Any]:
    return {"image": shop.images[rows.start : rows.stop].numpy()}


@pytest.mark.parametrize("binary", [True, False])
def test_answers_equal_the_offline_answer_at_their_bucket(binary: bool, worker_url: str, shop: Any) -> None:
    with client_of(worker_url) as client:
        for rows in ROW_GROUPS:
            reply = client.infer(inputs_of(shop, rows), binary=binary)

            assert shop.is_exact(reply, rows)


def test_updates_under_load_fail_nothing_and_every_answer_is_exact(
    worker_url: str, shop: Any, tiny: Any, under_load: Any
) -> None:
    with client_of(worker_url, tiny.token) as client, under_load([worker_url], ROW_GROUPS, clients=3) as shots:
        first = client.standing().generation
        history = [client.standing().root]
        for version in ("2", "3", "1", "3"):
            _wait_for_answers(client, more=60)
            client.stage(shop.checkpoint(version), root=shop.roots[version], seal=shop.seals[version], version=version)
            history.append(client.flip(shop.roots[version]).root)
        _wait_for_answers(client, more=60)
        undone = client.undo(shop.roots["3"])
        history.append(undone.root)
        _wait_for_answers(client, more=60)

    assert summarize(shots).failed == 0
    assert undone.outcome == "undone"
    assert undone.generation == first + 5
    for shot in shots:
        assert shop.is_exact(shot.reply, ROW_GROUPS[shot.request])
        assert shot.reply.root == history[shot.reply.generation - first]  # one root for each generation
    assert {shot.reply.generation for shot in shots} == set(range(first, first + 6))


def _wait_for_answers(client: Client, *, more: int) -> None:
    """Wait until the worker has answered some more requests of the load."""
    wanted = _answered(client) + more
    while _answered(client) < wanted:
        pass


def _answered(client: Client) -> float:
    line = next(line for line in client.metrics().splitlines() if 'status="ok"' in line)
    return float(line.split()[-1])


def test_a_corrupt_checkpoint_is_refused_while_the_old_one_answers(
    worker_url: str, shop: Any, tiny: Any, tmp_path: Path
) -> None:
    spoiled = tmp_path / "spoiled"
    shutil.copytree(shop.checkpoint("2"), spoiled)
    payload = next(spoiled.glob("weights-*.safetensors"))
    data = bytearray(payload.read_bytes())
    data[-3] ^= 1
    payload.write_bytes(data)

    with client_of(worker_url, tiny.token) as client:
        before = client.standing()
        with pytest.raises(CallError, match="status 409") as caught:
            client.stage(spoiled, root=shop.roots["2"], seal=shop.seals["2"], version="2")

        assert "does not match its manifest" in str(caught.value)
        assert client.standing() == before
        assert shop.is_exact(client.infer(inputs_of(shop, range(3))), range(3))


@pytest.mark.parametrize("lie", ["wrong root", "no folder", "spoiled program", "no program"])
def test_what_is_not_the_release_that_was_asked_for_is_refused(
    lie: str, worker_url: str, shop: Any, tiny: Any, tmp_path: Path
) -> None:
    folder, root, seal = tmp_path / "copy", shop.roots["2"], shop.seals["2"]
    shutil.copytree(shop.checkpoint("2"), folder)
    if lie == "wrong root":
        root = shop.roots["3"]
    elif lie == "no folder":
        shutil.rmtree(folder)
    elif lie == "spoiled program":
        program = folder / "program" / "program.pb"
        program.write_bytes(program.read_bytes()[:-1] + b"\x00")
    else:
        folder = tmp_path / "bare"
        seal = ckpt.save(ckpt.load(shop.checkpoint("2")), folder).seal

    with client_of(worker_url, tiny.token) as client:
        with pytest.raises(CallError) as caught:
            client.stage(folder, root=root, seal=seal, version="2")

        assert caught.value.status_code == 409
        assert client.standing().staged_root is None
        assert shop.is_exact(client.infer(inputs_of(shop, range(1))), range(1))


def test_a_swapped_program_is_refused_though_it_is_a_valid_one(
    worker_url: str, shop: Any, tiny: Any, other_program: Path, tmp_path: Path
) -> None:
    """Same inputs, outputs and tensors, another function: only the manifest's digest of the attachment can tell."""
    folder = tmp_path / "copy"
    shutil.copytree(shop.checkpoint("2"), folder)
    shutil.rmtree(folder / "program")
    shutil.copytree(other_program, folder / "program")

    with client_of(worker_url, tiny.token) as client:
        with pytest.raises(CallError, match=r"attachment 'program/program\.pb'"):
            client.stage(folder, root=shop.roots["2"], seal=shop.seals["2"], version="2")

        assert shop.is_exact(client.infer(inputs_of(shop, range(1))), range(1))


def test_a_program_swapped_with_its_manifest_is_not_staged(
    worker_url: str, shop: Any, tiny: Any, exchange: Any, tmp_path: Path
) -> None:
    """The folder verifies and has the root: only the seal can tell."""
    folder = tmp_path / "copy"
    shutil.copytree(shop.checkpoint("2"), folder)
    found = exchange(folder)

    with client_of(worker_url, tiny.token) as client:
        before = client.standing()
        with pytest.raises(CallError) as caught:
            client.stage(folder, root=shop.roots["2"], seal=shop.seals["2"], version="2")

        assert caught.value.status_code == 409
        assert f"folder '{folder}': found seal {found}, expected seal {shop.seals['2']}. Fetch" in str(caught.value)
        assert client.standing() == before
        assert shop.is_exact(client.infer(inputs_of(shop, range(1))), range(1))


def test_a_program_swapped_with_its_manifest_does_not_start(
    launch: Any, shop: Any, exchange: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(shop.checkpoint("1"), folder)
    found = exchange(folder)

    process = launch(
        *("worker", "--model", "mini", "--folder", str(folder), "--root", shop.roots["1"]),
        *("--seal", shop.seals["1"], "--port", "0"),
    )
    status, errors = process.end()

    assert status == 1
    assert f"folder '{folder}': found seal {found}, expected seal {shop.seals['1']}. Fetch" in errors


def test_an_interrupt_ends_a_worker_with_status_0_and_no_words(start_worker: Any, shop: Any) -> None:
    process, url = start_worker()
    with client_of(url) as client:
        client.infer(inputs_of(shop, range(2)))

    status, errors = process.stop(signal.SIGINT)

    assert (status, errors) == (0, "")


def test_requests_in_flight_are_answered_when_a_worker_drains(start_worker: Any, shop: Any) -> None:
    """Sixteen connections have sent their request, all but its last byte, when SIGTERM comes; all are answered."""
    process, url = start_worker()
    host, port = url.removeprefix("http://").split(":")
    headers, body = encode_request(inputs_of(shop, range(4)))
    lines = [f"{key}: {value}" for key, value in {**headers, "Content-Length": len(body), "Host": host}.items()]
    message = "\r\n".join(["POST /v2/models/mini/infer HTTP/1.1", *lines, "", ""]).encode() + body
    connections = [socket.create_connection((host, int(port))) for _ in range(16)]
    for connection in connections:
        connection.sendall(message[:-1])
    with client_of(url) as client:
        client.infer(inputs_of(shop, range(1)))  # by now the worker has read the others' heads

    process.popen.send_signal(signal.SIGTERM)
    for connection in connections:
        connection.sendall(message[-1:])
    answers = [_read_to_end(connection) for connection in connections]
    status, errors = process.end()

    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert (status, errors) == (0, "")


def _read_to_end(connection: socket.socket) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_worker_stops_when_its_parent_is_gone(start_worker: Any) -> None:
    process, _ = start_worker("--stop-with-stdin")

    # communicate() closes the worker's standard input and sends nothing, no signal either.
    assert process.end() == (0, "")


def test_a_port_in_use_is_named(launch: Any, shop: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = launch(
            *("worker", "--model", "mini", "--folder", str(shop.checkpoint("1")), "--root", shop.roots["1"]),
            *("--seal", shop.seals["1"], "--port", str(port)),
        )

        status, errors = process.end()

    assert status == 1
    assert errors.startswith(f"PortInUseError: port {port} of 127.0.0.1: found Address already in use")


def test_a_worker_on_a_bad_folder_ends_with_the_reason(launch: Any, shop: Any, tmp_path: Path) -> None:
    process = launch(
        *("worker", "--model", "mini", "--folder", str(tmp_path), "--root", shop.roots["1"]),
        *("--seal", shop.seals["1"], "--port", "0"),
    )

    status, errors = process.end()

    assert status == 1
    assert errors.startswith("ReleaseRefusedError: checkpoint folder")
    assert "is not a checkpoint" in errors


def test_a_short_token_is_refused(launch: Any, shop: Any, tmp_path: Path) -> None:
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("short\n")
    process = launch(
        *("worker", "--model", "mini", "--folder", str(tmp_path), "--root", "sha256:0", "--seal", "sha256:0"),
        *("--port", "0", "--token-file", str(tmp_path / "token")),
    )

    status, errors = process.end()

    assert status == 1
    assert "found 5 characters, expected at least 16" in errors


def test_a_client_that_leaves_does_not_disturb_the_others(worker_url: str, shop: Any) -> None:
    host, port = worker_url.removeprefix("http://").split(":")
    headers, body = encode_request(inputs_of(shop, range(4)))
    lines = [f"{key}: {value}" for key, value in {**headers, "Content-Length": len(body), "Host": host}.items()]
    message = "\r\n".join(["POST /v2/models/mini/infer HTTP/1.1", *lines, "", ""]).encode() + body

    for sent in (len(message), len(message) - 1, 20):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(message[:sent])

    with client_of(worker_url) as client:
        assert shop.is_exact(client.infer(inputs_of(shop, range(4))), range(4))
    assert httpx.get(f"{worker_url}/v2/health/ready", trust_env=False).json() == {"live": True, "ready": True}


def test_errors_over_a_real_connection_leave_it_usable(worker_url: str, shop: Any) -> None:
    with client_of(worker_url) as client:
        for bad in (np.zeros((1, 1, 6, 7), np.float32), np.zeros((33, 1, 6, 6), np.float32)):
            with pytest.raises(CallError, match="'shape' of input 'image'"):
                client.infer({"image": bad})
        with pytest.raises(CallError, match="expected 'FP32'"):
            client.infer({"image": np.zeros((1, 1, 6, 6), np.float64)})

        assert shop.is_exact(client.infer(inputs_of(shop, range(1))), range(1))


def test_open_loop_latency_counts_from_when_a_request_was_due(worker_url: str, shop: Any) -> None:
    shots = run_load(
        [worker_url],
        model="mini",
        requests=[inputs_of(shop, range(1))],
        max_requests=40,
        max_seconds=30,
        rate_per_s=400,
    )

    assert len(shots) == 40
    assert summarize(shots).failed == 0
    assert sorted(shot.started_s for shot in shots) == pytest.approx([number / 400 for number in range(40)])


Launch = Callable[..., Any]


def test_the_commands_explain_themselves(launch: Launch) -> None:
    for command, option in (([], "--model NAME@ALIAS"), (["fleet"], "--worker-ports"), (["worker"], "--folder")):
        process = launch(*command, "--help")
        text, _ = process.popen.communicate(timeout=60)

        assert process.popen.returncode == 0
        assert option in text
