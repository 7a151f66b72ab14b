"""The load generator against a worker that is coming up: patient, and no burden to it."""

import threading
from collections.abc import Mapping

import numpy as np

from serving.load import MOST_AGAIN, Shot, run_load
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


def test_requests_that_wait_for_a_worker_are_sent_again_a_few_at_a_time() -> None:
    worker = LoadingWorker()
    count = 3 * MOST_AGAIN
    heard: list[Shot] = []

    with web_server(worker) as host:
        shots = run_load(
            [f"http://{host}"],
            model="m",
            requests=[{"x": np.zeros(length, np.float32)} for length in range(1000, 1000 + count)],
            max_requests=count,
            max_seconds=60.0,
            rate_per_s=1000.0,
            patience_s=60.0,
            on_shot=heard.append,
        )

    assert heard == shots
    assert [(shot.status, shot.sends) for shot in shots] == [(400, 2)] * count
    assert worker.most_at_once <= MOST_AGAIN
