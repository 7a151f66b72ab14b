"""What can go wrong while watching, as one tree.

MonitorError
├── StoreError
│   ├── StoreUnavailableError  (ConnectionError)  the metric store does not answer
│   └── StoreRefusedError                         it answers, and not with what was asked for
├── ScrapeError                (ConnectionError)  a worker's /metrics cannot be read
├── TooFewWindowsError         (ValueError)       not enough healthy traffic to learn from
└── InvalidDetectorError       (ValueError)       a stored detector contradicts itself
"""


class MonitorError(Exception):
    """Anything that keeps the monitor from seeing or judging."""


class StoreError(MonitorError):
    """The metric store failed."""


class StoreUnavailableError(StoreError, ConnectionError):
    """Nothing answers at the store's address."""

    def __init__(self, url: str, *, found: str) -> None:
        self.url, self.found = url, found
        super().__init__(
            f"no metric store answers at {url} ({found}): start victoria-metrics there, give another --store, "
            "or leave it out to keep the window in memory"
        )


class StoreRefusedError(StoreError):
    """The store answered with an error, or with something else than samples."""

    def __init__(self, url: str, *, found: str, expected: str) -> None:
        self.url, self.found, self.expected = url, found, expected
        super().__init__(f"the metric store answered {url} with {found}, expected {expected}: is it VictoriaMetrics?")


class ScrapeError(MonitorError, ConnectionError):
    """A worker's metrics cannot be read."""

    def __init__(self, url: str, *, found: str) -> None:
        self.url, self.found = url, found
        super().__init__(f"cannot read metrics from {url}: {found}; expected Prometheus text, is the worker up?")


class TooFewWindowsError(MonitorError, ValueError):
    """There is not enough healthy traffic to learn what is normal."""

    def __init__(self, model: str, *, found: int, expected: int) -> None:
        self.model, self.found, self.expected = model, found, expected
        super().__init__(
            f"{found} windows of healthy traffic for model '{model}', expected at least {expected}: "
            "collect for longer, or send more requests (a window needs its least number of rows)"
        )


class InvalidDetectorError(MonitorError, ValueError):
    """A stored detector cannot be used."""

    def __init__(self, path: str, *, found: str) -> None:
        self.path, self.found = path, found
        super().__init__(
            f"the detector in '{path}' cannot be used: {found}; fit it again with 'python -m monitors fit'"
        )
