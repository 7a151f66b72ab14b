"""The metric store of a machine without VictoriaMetrics: the last while, in this process's memory.

It keeps ``retention_s`` behind the newest sample and no more, so a watch may run for weeks. It ends with the process.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

import numpy as np

from monitors.store import Labels, Sample, Series, storable


class Embedded:
    """Samples by series, oldest first, trimmed as new ones arrive."""

    def __init__(self, *, retention_s: float = 900.0) -> None:
        self._retention_ms = round(retention_s * 1000)
        self._newest_ms = 0
        self._series: dict[tuple[str, Labels], deque[tuple[int, float]]] = defaultdict(deque)

    def write(self, samples: Iterable[Sample]) -> None:
        """Add samples and drop those that are older than the retention."""
        for sample in storable(samples):
            self._series[sample.name, sample.labels].append((sample.at_ms, sample.value))
            self._newest_ms = max(self._newest_ms, sample.at_ms)
        oldest_ms = self._newest_ms - self._retention_ms
        for points in self._series.values():
            while points and points[0][0] < oldest_ms:
                points.popleft()
        self._series = defaultdict(deque, {key: points for key, points in self._series.items() if points})

    def read(self, labels: Mapping[str, str], *, start_ms: int, end_ms: int) -> tuple[Series, ...]:
        """Every series that carries all these labels, with its samples from start to end."""
        found = []
        for (name, own), points in sorted(self._series.items()):
            inside = sorted(point for point in points if start_ms <= point[0] <= end_ms)
            if inside and labels.items() <= dict(own).items():
                at_ms, values = zip(*inside, strict=True)
                found.append(
                    Series(name=name, labels=own, at_ms=np.array(at_ms, np.int64), values=np.array(values, np.float64))
                )
        return tuple(found)

    def close(self) -> None:
        """Forget everything."""
        self._series.clear()
