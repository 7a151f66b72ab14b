"""Bytes behind an address are fetched by range, no more than the bad ones, and whatever a server answers is borne."""

import base64
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ckpt
from ckpt.disk import byte_ranges
from ckpt.format.digests import CHUNK_BYTES
from tests.ckpt.range_server import Answer, Asked, range_server
from tests.ckpt.safetensors_files import weights

PAYLOAD = ".safetensors"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server gives: a checkpoint, and a plain file of the same weights."""
    folder = tmp_path_factory.mktemp("web")
    (folder / "note").write_bytes(bytes(3000))
    state = weights() | {"large": torch.arange(3 << 18, dtype=torch.int32)}
    ckpt.save(state, folder / "run" / "step 10", attachments={"docs/a note": folder / "note"})
    save_file(state, folder / "plain one.safetensors")
    return folder


@pytest.fixture
def damaged(web: Path, tmp_path: Path) -> Path:
    """Chunk 1 of ``large`` is bad."""
    folder = Path(shutil.copytree(web / "run" / "step 10", tmp_path / "damaged"))
    manifest = ckpt.read_manifest(folder)
    place = manifest.placements[manifest.by_name["large"].storage]
    with open(folder / manifest.files[place.file].name, "r+b") as file:
        file.seek(place.offset + CHUNK_BYTES)
        file.write(b"\xff" * 9)
    return folder


def test_only_the_bad_chunk_is_fetched(web: Path, damaged: Path) -> None:
    with range_server(web) as server:
        assert ckpt.repair(damaged, f"{server.url}/run/step%2010").ok

    assert server.bytes_of(PAYLOAD) == CHUNK_BYTES


def test_neighbours_are_fetched_together(web: Path, damaged: Path) -> None:
    for path in damaged.glob("weights-*"):
        path.unlink()

    with range_server(web) as server:
        assert ckpt.repair(damaged, f"{server.url}/run/step%2010/").ok

    payload = ckpt.read_manifest(damaged).payload_bytes
    assert server.bytes_of(PAYLOAD) == payload
    assert sum(item.path.endswith(PAYLOAD) for item in server.asked) == 1


def test_a_plain_file_behind_an_address_gives_tensors_by_name(web: Path, damaged: Path) -> None:
    with range_server(web) as server:
        assert ckpt.repair(damaged, f"{server.url}/plain%20one.safetensors?token=1").ok

    header = int.from_bytes((web / "plain one.safetensors").read_bytes()[:8], "little") + 8
    assert server.bytes_of(PAYLOAD) <= 1 + 8 + header + CHUNK_BYTES


def test_a_missing_attachment_is_fetched(web: Path, damaged: Path) -> None:
    shutil.rmtree(damaged / "docs")

    with range_server(web) as server:
        assert ckpt.repair(damaged, f"{server.url}/run/step%2010").ok


def test_a_bad_manifest_is_fetched_for_an_expected_root(web: Path, damaged: Path) -> None:
    root = ckpt.read_manifest(damaged).root
    (damaged / "manifest.pb").unlink()

    with range_server(web) as server:
        assert ckpt.repair(damaged, f"{server.url}/run/step%2010", root=root).ok


def test_the_tag_of_the_first_answer_is_sent_with_the_next(web: Path, damaged: Path) -> None:
    with range_server(web) as server:
        ckpt.repair(damaged, f"{server.url}/plain%20one.safetensors")

    first, *others = [item.headers.get("If-Range") for item in server.asked]
    assert first is None
    assert {tag[0] for tag in others if tag is not None} == {'"'}
    assert None not in others


# --- answers --------------------------------------------------------------------------------------------------------


def of_payload(change: Callable[[Asked, Answer], object]) -> Callable[[Asked, Answer], object]:
    return lambda asked, answer: change(asked, answer) if asked.path.endswith(PAYLOAD) else None


def put(answer: Answer, **fields: object) -> None:
    headers = {name.replace("_", "-"): str(value) for name, value in fields.items() if name[0].isupper()}
    answer.headers |= headers
    for name, value in fields.items():
        if name[0].islower():
            setattr(answer, name, value)


def _whole(_asked: Asked, answer: Answer) -> None:
    put(answer, status=200, body=bytes(5 << 20))


def _cut(_asked: Asked, answer: Answer) -> None:
    put(answer, Content_Length=len(answer.body), body=answer.body[:-5])
    answer.handler.close_connection = True


def _endless(_asked: Asked, answer: Answer) -> None:
    """No length, and bytes for as long as someone listens."""
    handler = answer.handler
    handler.send_response(206)
    for name, value in answer.headers.items():
        handler.send_header(name, value)
    handler.send_header("Connection", "close")
    handler.end_headers()
    answer.sent = handler.close_connection = True
    try:
        while True:
            handler.wfile.write(bytes(1 << 16))
    except OSError:
        return


ANSWERS: dict[str, Callable[[Asked, Answer], object]] = {
    "the whole file": _whole,
    "an error": lambda _, answer: put(answer, status=500, body=b""),
    "not found": lambda _, answer: put(answer, status=404, body=b""),
    "another range": lambda asked, answer: put(answer, Content_Range=f"bytes 0-{asked.end - asked.start - 1}/9999999"),
    "no range": lambda _, answer: put(answer, Content_Range=""),
    "a range of other units": lambda asked, answer: put(answer, Content_Range=f"rows {asked.start}-{asked.end}/*"),
    "fewer bytes": lambda _, answer: put(answer, body=answer.body[:-1]),
    "more bytes": lambda _, answer: put(answer, body=answer.body + b"x"),
    "a cut line": _cut,
    "bytes without end": _endless,
    "an encoded answer": lambda _, answer: put(answer, Content_Encoding="gzip"),
    "a circle of redirects": lambda asked, answer: put(answer, status=302, Location=asked.path.replace(" ", "%20")),
    "a redirect to a file": lambda _, answer: put(answer, status=302, Location="file:///etc/passwd"),
    "a redirect to nowhere": lambda _, answer: put(answer, status=302, Location="http://"),
    "no HTTP": lambda _, answer: (answer.handler.wfile.write(b"hello\r\n\r\n"), put(answer, sent=True)),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_is_not_what_was_asked_for_changes_nothing(kind: str, web: Path, damaged: Path) -> None:
    before = {path: path.read_bytes() for path in damaged.rglob("*") if path.is_file()}

    with range_server(web, of_payload(ANSWERS[kind])) as server, pytest.raises(ckpt.SourceError):
        ckpt.repair(damaged, f"{server.url}/run/step%2010")

    assert {path: path.read_bytes() for path in damaged.rglob("*") if path.is_file()} == before


def test_other_bytes_than_the_manifest_states_are_not_written(web: Path, damaged: Path) -> None:
    zeros = of_payload(lambda _, answer: put(answer, body=bytes(len(answer.body))))

    with range_server(web, zeros) as server:
        report = ckpt.repair(damaged, f"{server.url}/run/step%2010")

    assert [fault.chunk for fault in report.faults] == [1]


def test_a_file_that_changes_at_its_source_meanwhile_is_noticed(web: Path, damaged: Path, tmp_path: Path) -> None:
    shutil.copy(web / "plain one.safetensors", tmp_path / "x.safetensors")

    def change(_asked: Asked, _answer: Answer) -> None:
        with open(tmp_path / "x.safetensors", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([len(server.asked)]))

    with range_server(tmp_path, change) as server, pytest.raises(ckpt.SourceError, match="it changed"):
        ckpt.repair(damaged, f"{server.url}/x.safetensors")


def test_an_answer_that_trickles_is_given_up(web: Path, damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_ranges, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(byte_ranges, "_LEAST_BYTES_PER_S", 1 << 40)
    ended: list[str] = []

    def trickle(_asked: Asked, answer: Answer) -> None:
        """Never ends by itself: the client has to."""
        handler = answer.handler
        handler.send_response(206)
        for name, value in (answer.headers | {"Content-Length": str(len(answer.body))}).items():
            handler.send_header(name, value)
        handler.end_headers()
        answer.sent = handler.close_connection = True
        handler.wfile.write(answer.body[:5])
        ended.append(repr(handler.rfile.read(1)))

    with range_server(web, of_payload(trickle)) as server, pytest.raises(ckpt.SourceError, match="too long"):
        ckpt.repair(damaged, f"{server.url}/run/step%2010")
    assert len(ended) <= 1


def test_a_server_that_closes_kept_connections_is_asked_again(web: Path, damaged: Path) -> None:
    def close(_asked: Asked, answer: Answer) -> None:
        answer.handler.close_connection = True  # without a word

    with range_server(web, close) as server:
        assert ckpt.repair(damaged, f"{server.url}/run/step%2010").ok


def test_a_server_that_is_away_is_said(damaged: Path, web: Path) -> None:
    with range_server(web) as server:
        address = server.url

    with pytest.raises(ckpt.SourceError, match="ConnectionRefusedError"):
        ckpt.repair(damaged, f"{address}/run/step%2010")


# --- credentials ----------------------------------------------------------------------------------------------------


def test_credentials_go_to_their_host_and_not_along_a_redirect(web: Path, damaged: Path) -> None:
    with range_server(web) as other:

        def move(asked: Asked, answer: Answer) -> None:
            location = f"{other.url}{asked.path.replace(' ', '%20')}"
            put(answer, status=307, body=b"", Location=location)

        with range_server(web, of_payload(move)) as server:
            address = server.url.replace("http://", "http://me:s%40cret@")
            assert ckpt.repair(damaged, f"{address}/run/step%2010").ok

    expected = f"Basic {base64.b64encode(b'me:s@cret').decode()}"
    assert {item.headers.get("Authorization") for item in server.asked} == {expected}
    assert {item.headers.get("Authorization") for item in other.asked} == {None}
    assert other.bytes_of(PAYLOAD) == CHUNK_BYTES


def test_an_error_shows_neither_password_nor_query(web: Path, damaged: Path) -> None:
    with range_server(web, lambda _, answer: put(answer, status=403)) as server:
        address = server.url.replace("http://", "http://me:secret@")
        with pytest.raises(ckpt.SourceError, match="status 403") as caught:
            ckpt.repair(damaged, f"{address}/run/step%2010?signature=hidden")

    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)
