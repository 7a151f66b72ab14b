"""A load generator that keeps every answer, so that each can be compared with an oracle.

Closed loop: a number of clients, each sending its next request when the last one is answered. Open loop: requests leave
at a fixed rate whether or not answers come back, and latency counts from when a request should have left, so that a
slow server cannot slow its own measurement down (coordinated omission).

Requests are taken in turn from a list, and workers in turn from their URLs; a shot keeps the request's position in the
list. What failed is recorded as failed; with some patience, a request whose connection broke, or whose worker was still
loading, is first sent again, and the shot counts how often. Asking twice for an answer is harmless. Only a few
requests for one worker are being sent again at a time: all that wait for it would keep it from coming up. Those few
keep at it until they are answered or out of patience, and the others wait in line behind them: where each went to the
end of the line after a try, a request had two tries in two minutes, and failed beside a worker that was back.

Source: Tene, "How NOT to Measure Latency" (2013), for coordinated omission.
"""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from serving.client import Reply, decode_reply, encode_request
from serving.codec import Array

OK = 200
NO_ANSWER = 0
TIMEOUT_S = 30.0
PAUSE_S = 0.25
MOST_AGAIN = 8  # requests for one worker that are being sent again at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One request and what came of it.

    Attributes:
        request: Position in the list of requests.
        started_s: Seconds since the load began, when it left (closed loop) or should have left (open loop).
        status: HTTP status, or ``NO_ANSWER``.
        reply: With status 200.
        error: The worker's words, or what happened to the connection.
        sends: How often it was sent.
    """

    request: int
    url: str
    started_s: float
    latency_s: float
    status: int
    reply: Reply | None = None
    error: str | None = None
    sends: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts and latency quantiles of some shots; quantiles are over the answered ones, None without any."""

    requests: int
    failed: int
    p50_s: float | None
    p99_s: float | None
    longest_s: float | None


def run_load(
    urls: Sequence[str],
    *,
    model: str,
    requests: Sequence[Mapping[str, Array]],
    max_requests: int,
    max_seconds: float,
    clients: int = 4,
    rate_per_s: float | None = None,
    binary: bool = True,
    patience_s: float = 0.0,
    stop: threading.Event | None = None,
    on_shot: Callable[[Shot], object] | None = None,
) -> list[Shot]:
    """Send requests until one of the bounds is reached; return every shot, in the order of completion.

    Args:
        urls: Workers, taken in turn.
        model: The model's name.
        requests: Inputs by name, taken in turn.
        max_requests: Bound on the number of requests.
        max_seconds: Bound on the time in which requests leave.
        clients: Closed loop: how many send at once.
        rate_per_s: Open loop at this rate; None for the closed loop.
        binary: The form of the tensors.
        patience_s: How long a worker may answer nobody before requests for it are given up; each is sent again once,
            even when others kept it waiting for longer.
        stop: Ends the load when set; for callers that run it in a thread.
        on_shot: Hears of each shot when it is complete, in the thread that sends.
    """
    encoded = [encode_request(inputs, binary=binary) for inputs in requests]
    load = _Load(
        urls,
        path=f"/v2/models/{model}/infer",
        encoded=encoded,
        max_requests=max_requests,
        max_seconds=max_seconds,
        patience_s=patience_s,
        stop=stop or threading.Event(),
        on_shot=on_shot,
    )
    asyncio.run(load.closed(clients) if rate_per_s is None else load.open(rate_per_s))
    return load.shots


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What came of one sending."""

    status: int
    reply: Reply | None = None
    error: str | None = None

    @property
    def is_passing(self) -> bool:
        """Whether the same request may be answered in a moment: its worker died, or is loading or full."""
        return self.status in (NO_ANSWER, httpx.codes.SERVICE_UNAVAILABLE)


class _Load:
    """One run: what is left to send, and what came back."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        path: str,
        encoded: Sequence[tuple[dict[str, str], bytes]],
        max_requests: int,
        max_seconds: float,
        patience_s: float,
        stop: threading.Event,
        on_shot: Callable[[Shot], object] | None,
    ) -> None:
        self._on_shot = on_shot
        self.shots: list[Shot] = []
        self._urls = urls
        self._path = path
        self._encoded = encoded
        self._max_requests = max_requests
        self._max_seconds = max_seconds
        self._patience_s = patience_s
        self._stop = stop
        self._turns = {url: asyncio.Semaphore(MOST_AGAIN) for url in urls}
        self._answered_s = dict.fromkeys(urls, 0.0)  # when each worker last answered anybody
        self._sent = 0
        self._began_s = time.perf_counter()

    async def closed(self, clients: int) -> None:
        async with self._http() as http:
            await asyncio.gather(*(self._one_client(http) for _ in range(clients)))

    async def open(self, rate_per_s: float) -> None:
        async with self._http() as http, asyncio.TaskGroup() as group:
            while self._may_send():
                due_s = self._sent / rate_per_s
                await asyncio.sleep(max(0.0, due_s - self._now_s()))
                group.create_task(self._shoot(http, self._take(), started_s=due_s))

    async def _one_client(self, http: httpx.AsyncClient) -> None:
        while self._may_send():
            await self._shoot(http, self._take(), started_s=self._now_s())

    @asynccontextmanager
    async def _http(self) -> AsyncIterator[httpx.AsyncClient]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False) as http:
            yield http

    def _now_s(self) -> float:
        return time.perf_counter() - self._began_s

    def _may_send(self) -> bool:
        return self._sent < self._max_requests and self._now_s() < self._max_seconds and not self._stop.is_set()

    def _take(self) -> int:
        self._sent += 1
        return self._sent - 1

    async def _shoot(self, http: httpx.AsyncClient, number: int, *, started_s: float) -> None:
        request, url = number % len(self._encoded), self._urls[number % len(self._urls)]
        first_s, sends = self._now_s(), 1
        answer = await self._send(http, url, request)
        if answer.is_passing and self._patience_s > 0:
            async with self._turns[url]:
                while answer.is_passing and (sends == 1 or self._may_come_back(url, first_s)):
                    await asyncio.sleep(PAUSE_S)
                    sends += 1
                    answer = await self._send(http, url, request)
        shot = Shot(
            request=request,
            url=url,
            started_s=started_s,
            latency_s=self._now_s() - started_s,
            status=answer.status,
            reply=answer.reply,
            error=answer.error,
            sends=sends,
        )
        self.shots.append(shot)
        if self._on_shot is not None:
            self._on_shot(shot)

    def _may_come_back(self, url: str, first_s: float) -> bool:
        """Whether a worker that was first asked at ``first_s`` has not been silent for longer than patience lasts."""
        return self._now_s() < max(first_s, self._answered_s[url]) + self._patience_s

    async def _send(self, http: httpx.AsyncClient, url: str, request: int) -> _Answer:
        headers, body = self._encoded[request]
        try:
            response = await http.post(url + self._path, headers=headers, content=body)
        except httpx.TransportError as error:
            return _Answer(status=NO_ANSWER, error=f"{type(error).__name__}: {error}")
        if response.status_code != OK:
            return _Answer(status=response.status_code, error=response.text)
        self._answered_s[url] = self._now_s()
        return _Answer(status=OK, reply=decode_reply(response.headers, response.content))


def summarize(shots: Sequence[Shot]) -> Summary:
    """Count the failures and rank the latencies of the answered shots."""
    latencies = sorted(shot.latency_s for shot in shots if shot.status == OK)
    return Summary(
        requests=len(shots),
        failed=sum(shot.status != OK for shot in shots),
        p50_s=_quantile(latencies, 0.50),
        p99_s=_quantile(latencies, 0.99),
        longest_s=_quantile(latencies, 1.0),
    )


def _quantile(ranked: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least ``share`` of the ranked values do not exceed: nearest rank."""
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else None
