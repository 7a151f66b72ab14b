"""The control token: a secret in a file, replaced while a fleet runs, with no call of those who may call refused."""

import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import psutil
import pytest

from serving.client import Client
from serving.errors import CallError, TokenError
from serving.token import Bearer, Token, find_token


def write_token(file: Path) -> str:
    """Put another token in place, in one rename."""
    token = secrets.token_urlsafe(32)
    beside = file.with_suffix(".new")
    beside.touch(mode=0o600)
    beside.write_text(token + "\n")
    beside.replace(file)
    return token


def test_a_file_of_its_owner_is_read_anew_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    first = write_token(file)
    token = find_token(file)

    assert token is not None
    assert token.current() == first
    assert token.current() == first != write_token(file)
    assert token.current() == file.read_text().strip()
    assert first not in repr(Token(first))


BAD = {
    "readable by others": (lambda file: file.chmod(0o644), r"found mode 644, .* expected mode 600. chmod 600"),
    "writable by the group": (lambda file: file.chmod(0o620), "found mode 620"),
    "of another user": (lambda file: os.chown(file, 12345, -1), "found a file of user 12345, expected one of user"),
    "empty": (lambda file: file.write_text(""), "found 0 characters, expected at least 16"),
    "missing": (lambda file: file.unlink(), "No such file"),
    "no text": (lambda file: file.write_bytes(b"\xff" * 40), "expected a readable line of ASCII"),
    "of two lines": (lambda file: file.write_text("a" * 20 + "\n" + "b" * 20), "on one line of ASCII"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_holds_no_secret_is_refused(name: str, tmp_path: Path) -> None:
    if name == "of another user" and os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    spoil, words = BAD[name]
    token = write_token(tmp_path / "token")
    spoil(tmp_path / "token")

    with pytest.raises(TokenError, match=words) as raised:
        find_token(tmp_path / "token")

    assert token not in str(raised.value)


@pytest.mark.slow
@pytest.mark.integration
def test_a_token_is_rotated_while_the_fleet_runs_and_nobody_is_refused(
    shop: Any, launch: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    tokens = [write_token(file)]
    process = launch(
        *("fleet", "--model", "mini@champion", "--from", str(shop.folder), "--workers", "2", "--port", "0"),
        *("--state", str(tmp_path / "state"), "--token-file", str(file)),
    )
    fleet, *workers = (process.line().split()[-1] for _ in range(3))
    own = Token(file=file)

    def converge() -> httpx.Response:
        return httpx.post(f"{fleet}/converge", auth=Bearer(own), timeout=60, trust_env=False)

    assert converge().json()["converged"]
    enough = Event()
    with Client(workers[0], model="mini", token=own) as client, ThreadPoolExecutor() as pool:
        calls = pool.submit(lambda: [(converge(), client.standing()) for _ in iter(enough.is_set, True)])
        try:
            for _ in range(8):
                tokens.append(write_token(file))
                assert converge().json()["problem"] is None  # the fleet's own calls to its workers went through
        finally:
            enough.set()

    assert {answer.status_code for answer, _ in calls.result()} == {200}
    assert {answer.json()["problem"] for answer, _ in calls.result()} == {None}
    with httpx.Client(trust_env=False) as stranger:
        answers = [stranger.post(f"{fleet}/converge", headers={"Authorization": f"Bearer {old}"}) for old in tokens]
    assert [answer.status_code for answer in answers] == [401] * 8 + [200]
    with Client(workers[1], model="mini", token=Token(tokens[0])) as client, pytest.raises(CallError, match="401"):
        client.standing()

    family = psutil.Process(process.popen.pid)
    lines = [" ".join(one.cmdline()) for one in (family, *family.children(recursive=True))]
    assert len(lines) == 3
    assert [line for line in lines if any(token in line for token in tokens)] == []
    file.chmod(0o644)
    assert httpx.post(f"{fleet}/converge", headers={"Authorization": f"Bearer {tokens[-1]}"}).status_code == 401
    status, log = process.stop()
    assert status == 0
    assert "mode 644" in log
    assert not any(token in log for token in tokens)
