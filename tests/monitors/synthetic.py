"""Workers that never ran: metrics of the form that a worker exposes, drawn from a version's statistics.

The behaviours are measured ones: the MNIST recipe's v1, v2 (head fine-tuned), v3 (a few steps) and v4 (trained on
shuffled labels, from v3 or from fresh weights) on held-out digits. Everything is drawn from one seed.
"""

from dataclasses import dataclass, replace

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from monitors.scrape import parse
from monitors.store import Sample

EVEN = (0.11, 0.09, 0.09, 0.1, 0.1, 0.09, 0.12, 0.1, 0.1, 0.1)


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a version's answers look like, and how fast they come."""

    root: str
    version: str
    mean: float
    spread: float
    margin: float
    shares: tuple[float, ...] = EVEN
    rate: float = 120.0  # requests a second and worker
    latency_s: float = 0.003
    error_share: float = 0.0
    nonfinite_share: float = 0.0


V1 = Behaviour(root="sha256:v1", version="1", mean=-0.988, spread=3.050, margin=5.987)
V2 = Behaviour(root="sha256:v2", version="2", mean=-1.223, spread=3.244, margin=6.335)
V3 = Behaviour(root="sha256:v3", version="3", mean=-1.232, spread=3.251, margin=6.327)
COLLAPSED = (0.01, 0.06, 0.21, 0.03, 0.22, 0.20, 0.01, 0.07, 0.09, 0.10)
V4 = Behaviour(root="sha256:v4", version="4", mean=-1.059, spread=0.172, margin=0.114, shares=COLLAPSED)
V4_FRESH = replace(
    V4, mean=0.053, spread=0.238, margin=0.121, shares=(0.01, 0.07, 0.07, 0.06, 0.07, 0.2, 0.13, 0.22, 0.09, 0.08)
)


class SyntheticWorker:
    """Counts like a worker; ``serve`` lets time pass, ``text`` is what /metrics would say."""

    def __init__(self, *, seed: int, url: str = "http://127.0.0.1:8000", model: str = "mnist") -> None:
        self.url, self.model = url, model
        self._random = np.random.default_rng(seed)
        self.generation = 0
        self._root = ""
        self.restart()

    def restart(self) -> None:
        """Begin all sums again at 0, as a new process does."""
        self._registry = registry = CollectorRegistry()
        one = ("model",)
        self._requests = Counter("treering_requests", "", ("model", "status"), registry=registry)
        self._predictions = Counter("treering_predictions", "", ("model", "class"), registry=registry)
        self._seconds = Histogram("treering_request_seconds", "", one, registry=registry).labels(self.model)
        self._counters = {
            name: Counter(f"treering_{name}", "", one, registry=registry).labels(self.model)
            for name in ("rows", "output_values", "output_nonfinite")
        }
        self._sums = {
            name: Gauge(f"treering_{name}", "", one, registry=registry).labels(self.model)
            for name in ("output_sum", "output_square_sum", "margin_sum", "generation")
        }
        self._info = Gauge("treering_model_info", "", ("model", "root", "version"), registry=registry)
        self._root = ""

    def serve(self, behaviour: Behaviour, *, seconds: float) -> None:
        """Answer requests of one row each for a while, as this version would."""
        self._show(behaviour)
        requests = int(self._random.poisson(behaviour.rate * seconds))
        failed = int(self._random.binomial(requests, behaviour.error_share))
        self._requests.labels(self.model, "error").inc(failed)
        self._requests.labels(self.model, "ok").inc(requests - failed)
        for latency_s in self._random.lognormal(np.log(behaviour.latency_s), 0.5, requests):
            self._seconds.observe(latency_s)
        if requests > failed:
            self._count_rows(behaviour, rows=requests - failed)

    def text(self) -> str:
        """The Prometheus exposition."""
        return generate_latest(self._registry).decode()

    def samples(self, *, now_ms: int) -> list[Sample]:
        """What a scrape gives."""
        return parse(self.text(), url=self.url, now_ms=now_ms)

    def _show(self, behaviour: Behaviour) -> None:
        if behaviour.root != self._root:
            self._root = behaviour.root
            self.generation += 1
            self._info.clear()
            self._info.labels(self.model, behaviour.root, behaviour.version).set(1)
        self._sums["generation"].set(self.generation)

    def _count_rows(self, behaviour: Behaviour, *, rows: int) -> None:
        shares = np.asarray(behaviour.shares)
        values = self._random.normal(behaviour.mean, behaviour.spread, (rows, len(shares)))
        finite = values[self._random.random(values.shape) >= behaviour.nonfinite_share]
        self._counters["rows"].inc(rows)
        self._counters["output_values"].inc(values.size)
        self._counters["output_nonfinite"].inc(values.size - finite.size)
        self._sums["output_sum"].inc(float(finite.sum()))
        self._sums["output_square_sum"].inc(float((finite**2).sum()))
        self._sums["margin_sum"].inc(float(self._random.gamma(2.0, behaviour.margin / 2, rows).sum()))
        for kind, count in enumerate(self._random.multinomial(rows, shares / shares.sum())):
            if count:
                self._predictions.labels(self.model, str(kind)).inc(int(count))
