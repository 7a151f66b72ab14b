"""The load generator against a worker that is coming up: patient, and no burden to it."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from serving.load import MOST_AGAIN, Shot, _Load, run_load
from tests.web import web_server


class LoadingWorker:
    """Answers 503 to each request's first sending, and holds the next one for a moment to count those held.

    Requests are told apart by their length.
    """

    def __init__(self) -> None:
        self.most_at_once = 0
        self._seen: set[str] = set()
        self._held = 0
        self._lock = threading.Lock()
        self._too_many = threading.Event()

    def __call__(self, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        with self._lock:
            request = headers["Content-Length"]
            if request not in self._seen:
                self._seen.add(request)
                return 503, "loading"
            self._held += 1
            self.most_at_once = max(self.most_at_once, self._held)
            if self._held > MOST_AGAIN:
                self._too_many.set()
        self._too_many.wait(0.3)
        with self._lock:
            self._held -= 1
        return 400, "seen"


class AbsentWorker:
    """Answers 503 until one request was sent ``tries`` times. Requests are told apart by their length."""

    def __init__(self, *, tries: int) -> None:
        self._tries = tries
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        with self._lock:
            self._seen[headers["Content-Length"]] += 1
            return (400, "seen") if max(self._seen.values()) >= self._tries else (503, "loading")


def load(
    worker: Callable[[str, Mapping[str, str]], tuple[int, str]],
    *,
    requests: int,
    patience_s: float,
    on_shot: Callable[[Shot], object] | None = None,
) -> list[Shot]:
    """Requests of different lengths, all at about the same time."""
    with web_server(worker) as host:
        return run_load(
            [f"http://{host}"],
            model="m",
            requests=[{"x": np.zeros(length, np.float32)} for length in range(1000, 1000 + requests)],
            max_requests=requests,
            max_seconds=60.0,
            rate_per_s=1000.0,
            patience_s=patience_s,
            on_shot=on_shot,
        )


@pytest.mark.parametrize("patience_s", [60.0, 0.001])
def test_requests_that_wait_for_a_worker_are_sent_again_a_few_at_a_time(patience_s: float) -> None:
    worker = LoadingWorker()
    count = 3 * MOST_AGAIN
    heard: list[Shot] = []

    shots = load(worker, requests=count, patience_s=patience_s, on_shot=heard.append)

    assert heard == shots
    assert [(shot.status, shot.sends) for shot in shots] == [(400, 2)] * count
    assert worker.most_at_once <= MOST_AGAIN


def test_requests_that_wait_for_a_worker_keep_their_places_in_the_line() -> None:
    shots = load(AbsentWorker(tries=6), requests=4 * MOST_AGAIN, patience_s=60.0)

    assert {shot.status for shot in shots} == {400}
    assert max(shot.sends for shot in shots) == 6
    assert sum(shot.sends > 2 for shot in shots) <= MOST_AGAIN


def test_a_worker_that_answers_others_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    load = _Load(
        ["a", "b"],
        path="/",
        encoded=[],
        max_requests=1,
        max_seconds=1.0,
        patience_s=100.0,
        stop=threading.Event(),
        on_shot=None,
    )
    monkeypatch.setattr(load, "_now_s", lambda: 150.0)
    load._answered_s["a"] = 60.0

    assert load._may_come_back("a", first_s=20.0)
    assert not load._may_come_back("b", first_s=20.0)
    assert load._may_come_back("b", first_s=60.0)


def test_without_patience_nothing_is_sent_again() -> None:
    shots = load(AbsentWorker(tries=2), requests=3, patience_s=0.0)

    assert [(shot.status, shot.sends) for shot in shots] == [(503, 1)] * 3
