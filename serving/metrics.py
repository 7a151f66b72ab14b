"""What a worker counts, as Prometheus text and as the protocol's statistics.

Everything that counts is a sum that only grows, so a window is the difference of two scrapes; ``treering_output_sum``
alone may fall, since outputs may be negative. Sums are over the finite values of the first output; margins and classes
are counted when it has 2 to ``engine.MAX_CLASSES`` columns. ``nv_inference_*`` repeat Triton's names, so that
dashboards made for it work.

Promises: no value of an input or output leaves this module except inside a sum. Each worker has a registry of its own;
all calls come from the event loop's thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import UntypedMetricFamily
from prometheus_client.registry import Collector

from serving.engine import Live, OutputSums

STATUSES = ("ok", "error", "invalid", "rejected")
OUTCOMES = ("staged", "refused", "flipped", "undone", "noop")
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PAUSE_SECONDS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The figures that the protocol's statistics and Triton's names share."""

    ok: int = 0
    failed: int = 0
    rejected: int = 0
    ok_s: float = 0.0
    failed_s: float = 0.0
    rows: int = 0
    batches: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    last_ms: int = 0


class Metrics:
    """The counters of one worker and its model."""

    def __init__(self, *, model: str) -> None:
        self.totals = Totals()
        self._registry = registry = CollectorRegistry()
        self._model = model

        def counter(name: str, text: str) -> Counter:
            return Counter(f"treering_{name}", text, ("model",), registry=registry).labels(model)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"treering_{name}", text, ("model",), registry=registry).labels(model)

        def histogram(name: str, text: str, buckets: Sequence[float] = SECONDS) -> Histogram:
            return Histogram(f"treering_{name}", text, ("model",), buckets=buckets, registry=registry).labels(model)

        requests = Counter("treering_requests", "Infer requests, by outcome.", ("model", "status"), registry=registry)
        self._requests = {status: requests.labels(model, status) for status in STATUSES}
        self._request_seconds = histogram("request_seconds", "From the request's head to its answer.")
        self._rows = counter("rows", "Rows answered.")
        self._output_sum = gauge("output_sum", "Sum of the first output's finite values; may fall.")
        self._output_square_sum = gauge("output_square_sum", "Sum of the squares of the first output's finite values.")
        self._output_values = counter("output_values", "Values of the first output, finite or not.")
        self._output_nonfinite = counter("output_nonfinite", "NaN and infinite values of the first output.")
        self._margin_sum = gauge("margin_sum", "Sum over rows of the first output's largest minus second largest.")
        self._predictions = Counter(
            "treering_predictions", "Rows by the first output's largest column.", ("model", "class"), registry=registry
        )
        self._batches = counter("batches", "Batches computed.")
        self._batch_rows = counter("batch_rows", "Rows of requests in batches.")
        self._padded_rows = counter("padded_rows", "Rows added to fill buckets.")
        self._queue_seconds = histogram("queue_seconds", "From a request's arrival to the start of its batch.")
        self._batch_seconds = histogram("batch_seconds", "Computing one batch.")
        self._generation = gauge("generation", "Rises by one with each applied update.")
        self._model_info = Gauge(
            "treering_model_info", "What is live.", ("model", "root", "version"), registry=registry
        )
        updates = Counter("treering_updates", "Update steps, by outcome.", ("model", "outcome"), registry=registry)
        self._updates = {outcome: updates.labels(model, outcome) for outcome in OUTCOMES}
        self._stage_seconds = histogram("update_stage_seconds", "Verifying and building a slot, beside traffic.")
        self._pause_seconds = histogram("update_pause_seconds", "No batch could start.", PAUSE_SECONDS)
        registry.register(_TritonNames(self, model=model))

    def text(self) -> bytes:
        """Write the Prometheus exposition."""
        return generate_latest(self._registry)

    def count_request(self, status: str, *, seconds: float, now_ms: int) -> None:
        """Count one infer request by its outcome, a key of ``STATUSES``."""
        self._requests[status].inc()
        self._request_seconds.observe(seconds)
        totals = self.totals
        if status == "ok":
            self.totals = replace(totals, ok=totals.ok + 1, ok_s=totals.ok_s + seconds, last_ms=now_ms)
        elif status in ("error", "invalid"):
            self.totals = replace(totals, failed=totals.failed + 1, failed_s=totals.failed_s + seconds)
        else:
            self.totals = replace(totals, rejected=totals.rejected + 1)

    def count_batch(self, *, rows: int, bucket: int, seconds: float, queued_s: Sequence[float]) -> None:
        """Count one batch: its rows, its padding, its time, and how long each of its requests had waited."""
        self._rows.inc(rows)
        self._batches.inc()
        self._batch_rows.inc(rows)
        self._padded_rows.inc(bucket - rows)
        self._batch_seconds.observe(seconds)
        for waited_s in queued_s:
            self._queue_seconds.observe(waited_s)
        totals = self.totals
        self.totals = replace(
            totals,
            rows=totals.rows + rows,
            batches=totals.batches + 1,
            queue_s=totals.queue_s + sum(queued_s),
            compute_s=totals.compute_s + seconds,
        )

    def count_outputs(self, sums: OutputSums) -> None:
        """Add what a batch's outputs sum to."""
        self._output_values.inc(sums.values)
        self._output_nonfinite.inc(sums.nonfinite)
        self._output_sum.inc(sums.total)
        self._output_square_sum.inc(sums.square_total)
        self._margin_sum.inc(sums.margin_total)
        for kind, count in sums.class_counts:
            self._predictions.labels(self._model, str(kind)).inc(count)

    def count_stage(self, outcome: str, *, seconds: float) -> None:
        """Count one staging, done or refused."""
        self._updates[outcome].inc()
        self._stage_seconds.observe(seconds)

    def count_noop(self) -> None:
        """Count an undo or a flip that found nothing to do."""
        self._updates["noop"].inc()

    def count_exchange(self, outcome: str, *, pause_s: float) -> None:
        """Count one flip or undo."""
        self._updates[outcome].inc()
        self._pause_seconds.observe(pause_s)

    def show_live(self, live: Live) -> None:
        """Say what is live."""
        self._generation.set(live.generation)
        self._model_info.clear()
        self._model_info.labels(self._model, live.slot.root, live.slot.version).set(1)


class _TritonNames(Collector):
    """The totals under Triton's names and units."""

    def __init__(self, metrics: Metrics, *, model: str) -> None:
        self._metrics = metrics
        self._model = model

    def collect(self) -> Iterator[UntypedMetricFamily]:
        totals = self._metrics.totals
        figures = {
            "request_success": totals.ok,
            "request_failure": totals.failed + totals.rejected,
            "count": totals.rows,
            "exec_count": totals.batches,
            "request_duration_us": round((totals.ok_s + totals.failed_s) * 1e6),
            "queue_duration_us": round(totals.queue_s * 1e6),
            "compute_infer_duration_us": round(totals.compute_s * 1e6),
        }
        for name, value in figures.items():
            family = UntypedMetricFamily(f"nv_inference_{name}", "As Triton counts it.", labels=("model",))
            family.add_metric((self._model,), value)
            yield family
