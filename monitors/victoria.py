"""VictoriaMetrics over HTTP, the one module that speaks to it.

Samples go in as Prometheus text with timestamps and come out raw by ``/api/v1/export``: ``query_range`` would
interpolate, look back, hide the last 30 s and repeat its last point. The server needs no flag for this module.

One trap costs ten seconds (measured on 1.79.5): a series that is new under a filter which was read before stays
invisible for 9.9 s, the life of the server's filter cache; ``/internal/force_flush`` makes it visible in 10 ms. So
``write`` flushes when it brings a series that this process has not written yet, and only then. Samples of known
series are seen after 0.1 to 1 s.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
import numpy as np

from monitors.errors import StoreRefusedError, StoreUnavailableError
from monitors.store import Labels, Sample, Series, storable

TIMEOUT_S = 10.0


class Victoria:
    """A VictoriaMetrics server at ``url``, such as http://127.0.0.1:8428."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, timeout=TIMEOUT_S, trust_env=False)
        self._known: set[tuple[str, Labels]] = set()

    def write(self, samples: Iterable[Sample]) -> None:
        """Import samples.

        Raises:
            StoreUnavailableError, StoreRefusedError: They may not have been stored.
        """
        kept = storable(samples)
        if not kept:
            return
        self._call("POST", "/api/v1/import/prometheus", content="".join(map(_line, kept)))
        series = {(sample.name, sample.labels) for sample in kept}
        if not series <= self._known:
            self._call("GET", "/internal/force_flush")
            self._known |= series

    def read(self, labels: Mapping[str, str], *, start_ms: int, end_ms: int) -> tuple[Series, ...]:
        """Export the raw samples of every series that carries all these labels.

        Raises:
            StoreUnavailableError, StoreRefusedError: The server failed, or answered with something else.
        """
        selector = "{" + ",".join(f"{key}={_quoted(value)}" for key, value in sorted(labels.items())) + "}"
        span = {"start": f"{start_ms / 1000:.3f}", "end": f"{end_ms / 1000:.3f}"}
        response = self._call("GET", "/api/v1/export", params={"match[]": selector, **span})
        try:
            series = [_series(json.loads(line)) for line in response.text.splitlines()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            found = f"{response.text[:80]!r} ({type(error).__name__})"
            raise StoreRefusedError(str(response.url), found=found, expected="one JSON series a line") from error
        return tuple(sorted(series, key=lambda one: (one.name, one.labels)))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise StoreUnavailableError(self.url, found=str(error) or type(error).__name__) from error
        if not response.is_success:
            found = f"status {response.status_code}: {response.text[:200]}"
            raise StoreRefusedError(f"{self.url}{path}", found=found, expected="status 200 or 204")
        return response


def _line(sample: Sample) -> str:
    labels = ",".join(f"{key}={_quoted(value)}" for key, value in sample.labels)
    return f"{sample.name}{{{labels}}} {sample.value!r} {sample.at_ms}\n"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _series(form: dict[str, Any]) -> Series:
    metric = dict(form["metric"])
    order = np.argsort(np.asarray(form["timestamps"], dtype=np.int64), kind="stable")
    return Series(
        name=metric.pop("__name__"),
        labels=tuple(sorted(metric.items())),
        at_ms=np.asarray(form["timestamps"], dtype=np.int64)[order],
        values=np.asarray(form["values"], dtype=np.float64)[order],
    )
