"""VictoriaMetrics over HTTP, the one module that speaks to it.

Samples go in as Prometheus text with timestamps and come out raw by ``/api/v1/export``: ``query_range`` would
interpolate, look back, hide the last 30 s and repeat its last point. The server needs no flag for this module.

One trap costs ten seconds (measured on 1.79.5): a series that is new under a filter which was read before stays
invisible for 9.9 s, the life of the server's filter cache; ``/internal/force_flush`` makes it visible in 10 ms. So
``write`` flushes when it brings a series that this process has not written yet, and only then. Samples of known
series are seen after 0.1 to 1 s.

A server that is away loses nothing: what it could not take is kept, up to ``MAX_LATE_LINES``, and goes before the next
write or read, with the times at which it was sampled. Credentials stand in no message.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import httpx
import numpy as np

from monitors.errors import StoreRefusedError, StoreUnavailableError
from monitors.store import Labels, Sample, Series, storable

TIMEOUT_S = 10.0
PAUSE_S = 0.5
MAX_LATE_LINES = 200_000  # two workers for a few minutes, about 40 MB
AWAY = (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT)
NO_LABELS: Mapping[str, str] = MappingProxyType({})

log = logging.getLogger(__name__)


class Victoria:
    """A VictoriaMetrics server.

    Args:
        url: Such as http://127.0.0.1:8428; a user and a password in it are used and not shown.
        auth: User and password, where they do not stand in the address.
        labels: Put on all that is written, asked for in all that is read, and not shown to the caller: what keeps apart
            the writers that share a server.
        patience_s: How long a read waits for a server that is away; a write never waits.
    """

    def __init__(
        self,
        url: str,
        *,
        auth: tuple[str, str] | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        patience_s: float = 0.0,
    ) -> None:
        address = httpx.URL(url.rstrip("/"))
        auth = (address.username, address.password) if address.username else auth
        self.url = str(address.copy_with(username=None, password=None))
        self._client = httpx.Client(base_url=self.url, auth=auth, timeout=TIMEOUT_S, trust_env=False)
        self._labels = dict(labels)
        self._patience_s = patience_s
        self._known: set[tuple[str, Labels]] = set()
        self._late: deque[str] = deque(maxlen=MAX_LATE_LINES)
        self._writing = threading.Lock()

    def write(self, samples: Iterable[Sample]) -> None:
        """Import samples.

        Raises:
            StoreUnavailableError: The server is away; they are kept for the next write or read.
            StoreRefusedError: They were not stored.
        """
        kept = storable(samples)
        if not kept:
            return
        with self._writing:
            self._late.extend(self._line(sample) for sample in kept)
            self._send_late()
            series = {(sample.name, sample.labels) for sample in kept}
            if not series <= self._known:
                self._call("GET", "/internal/force_flush")
                self._known |= series

    def read(self, labels: Mapping[str, str], *, start_ms: int, end_ms: int) -> tuple[Series, ...]:
        """Export the raw samples of every series that carries all these labels.

        Raises:
            StoreUnavailableError, StoreRefusedError: The server failed, or answered with something else.
        """
        wanted = sorted({**labels, **self._labels}.items())
        selector = "{" + ",".join(f"{key}={_quoted(value)}" for key, value in wanted) + "}"
        span = {"start": f"{start_ms / 1000:.3f}", "end": f"{end_ms / 1000:.3f}"}
        response = self._export({"match[]": selector, **span})
        try:
            series = [_series(json.loads(line), without=self._labels) for line in response.text.splitlines()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            found = f"{response.text[:80]!r} ({type(error).__name__})"
            raise StoreRefusedError(str(response.url), found=found, expected="one JSON series a line") from error
        return tuple(sorted(series, key=lambda one: (one.name, one.labels)))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _export(self, parameters: Mapping[str, str]) -> httpx.Response:
        """What was written late and what is asked for; waits for a server that is away."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                with self._writing:
                    if self._late:
                        self._send_late()
                        self._call("GET", "/internal/force_flush")
                return self._call("GET", "/api/v1/export", params=parameters)
            except StoreUnavailableError as fault:
                if time.monotonic() >= deadline:
                    raise
                log.warning("%s; asking again", fault)
                time.sleep(PAUSE_S)

    def _send_late(self) -> None:
        """Send what is kept; lines that the server refused are dropped, since it would refuse them again."""
        try:
            self._call("POST", "/api/v1/import/prometheus", expected=204, content="".join(self._late))
        except StoreRefusedError:
            self._late.clear()
            raise
        self._late.clear()

    def _line(self, sample: Sample) -> str:
        labels = ",".join(f"{key}={_quoted(value)}" for key, value in (*sample.labels, *self._labels.items()))
        return f"{sample.name}{{{labels}}} {sample.value!r} {sample.at_ms}\n"

    def _call(self, method: str, path: str, *, expected: int = 200, **arguments: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise StoreUnavailableError(self.url, found=str(error) or type(error).__name__) from error
        if response.status_code in AWAY:
            raise StoreUnavailableError(self.url, found=f"status {response.status_code}")
        if response.status_code != expected:
            found = f"status {response.status_code}: {response.text[:200]}"
            raise StoreRefusedError(f"{self.url}{path}", found=found, expected=f"status {expected}")
        return response


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _series(form: dict[str, Any], *, without: Mapping[str, str]) -> Series:
    metric = {key: value for key, value in form["metric"].items() if key not in without}
    order = np.argsort(np.asarray(form["timestamps"], dtype=np.int64), kind="stable")
    return Series(
        name=metric.pop("__name__"),
        labels=tuple(sorted(metric.items())),
        at_ms=np.asarray(form["timestamps"], dtype=np.int64)[order],
        values=np.asarray(form["values"], dtype=np.float64)[order],
    )
