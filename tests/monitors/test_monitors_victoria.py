"""A VictoriaMetrics server of other people: it asks for a password, others write to it, it goes away and comes back."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from monitors import Sample, StoreRefusedError, StoreUnavailableError, Victoria
from tests.monitors.conftest import VICTORIA, free_port, wait_until_healthy

pytestmark = [pytest.mark.integration, pytest.mark.skipif(VICTORIA is None, reason="victoria-metrics is not installed")]

T0 = 1_790_000_000_000
PASSWORD = "pass@word/1"
LABELS = (("model", "m"),)


def samples(*values: float) -> list[Sample]:
    return [Sample(name="a", labels=LABELS, at_ms=T0 + place, value=value) for place, value in enumerate(values)]


def values(store: Victoria) -> list[float]:
    return [value for one in store.read(dict(LABELS), start_ms=T0, end_ms=T0 + 1000) for value in one.values.tolist()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Starts the server, always on the same port and data."""
    port = free_port()
    started = []

    def run() -> "subprocess.Popen[bytes]":
        command = [VICTORIA, f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={tmp_path}/data"]
        command += ["-retentionPeriod=100y", "-memory.allowedBytes=200MB", "-envflag.enable"]
        own = {"httpAuth_username": "ann", "httpAuth_password": PASSWORD}
        with open(tmp_path / "log", "ab") as log:
            started.append(subprocess.Popen(command, stderr=log, env=os.environ | own))
        wait_until_healthy(f"http://127.0.0.1:{port}")
        return started[-1]

    run.url = f"http://127.0.0.1:{port}"  # type: ignore[attr-defined]
    yield run
    for process in started:
        process.kill()
        process.wait()


def test_a_password_is_used_wherever_it_stands_and_never_shown(start: Callable[[], object]) -> None:
    start()
    url = start.url  # type: ignore[attr-defined]
    inside = url.replace("http://", "http://ann:pass%40word%2F1@")

    for store in (Victoria(inside), Victoria(url, auth=("ann", PASSWORD))):
        with closing(store):
            store.write(samples(1.0))
            assert store.url == url
            assert set(values(store)) == {1.0}
    with closing(Victoria(inside.replace("word", "ward"))) as wrong, pytest.raises(StoreRefusedError) as raised:
        wrong.write(samples(1.0))

    assert "401" in str(raised.value)
    assert "ward" not in str(raised.value)


def test_writers_that_share_a_server_are_kept_apart_by_labels(start: Callable[[], object]) -> None:
    start()
    url = start.url  # type: ignore[attr-defined]
    one, two = (Victoria(url, auth=("ann", PASSWORD), labels={"stack": name}) for name in ("one", "two"))

    with closing(one), closing(two):
        one.write(samples(1.0, 2.0))
        two.write(samples(3.0))

        assert (values(one), values(two)) == ([1.0, 2.0], [3.0])
        assert {series.labels for series in one.read(dict(LABELS), start_ms=T0, end_ms=T0 + 1000)} == {LABELS}


def test_a_server_that_goes_away_and_comes_back_has_every_sample(
    start: Callable[[], "subprocess.Popen[bytes]"],
) -> None:
    server = start()
    url = start.url  # type: ignore[attr-defined]
    with closing(Victoria(url, auth=("ann", PASSWORD), patience_s=60)) as store:
        store.write(samples(1.0))
        server.terminate()
        server.wait()
        for known in (2, 3):
            with pytest.raises(StoreUnavailableError, match="no metric store answers"):
                store.write(samples(*range(1, known + 1))[-1:])
        back = threading.Timer(1.0, start)
        back.start()

        found = values(store)

        back.join()
    assert found == [1.0, 2.0, 3.0]
