"""Workers' ``/metrics`` → samples.

The text is parsed by prometheus_client. Each sample gets an ``instance`` label (host:port) and the time of the scrape.
Only ``treering_*`` series are kept, without the ``_created`` ones that say when a counter was made. A worker that does
not answer is a fact, not a failure of the monitor: it becomes ``treering_up{instance=…} 0``.
"""

from collections.abc import Iterable

import httpx
from prometheus_client.parser import text_string_to_metric_families

from monitors.errors import ScrapeError
from monitors.store import Sample

PREFIX = "treering_"
TIMEOUT_S = 2.0
UP = "treering_up"


def scrape(client: httpx.Client, url: str, *, now_ms: int) -> list[Sample]:
    """Read one worker.

    Args:
        client: Its timeout bounds the wait.
        url: The worker's address, such as http://127.0.0.1:8000.
        now_ms: The time that the samples carry.

    Raises:
        ScrapeError: No answer, an error status, or no Prometheus text.
    """
    address = f"{url.rstrip('/')}/metrics"
    try:
        response = client.get(address)
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise ScrapeError(address, found=str(error) or type(error).__name__) from error
    return [*parse(response.text, url=url, now_ms=now_ms), _up(url, now_ms=now_ms, value=1.0)]


def scrape_all(client: httpx.Client, urls: Iterable[str], *, now_ms: int) -> tuple[list[Sample], list[ScrapeError]]:
    """Read every worker: the samples of those that answer, and why the others did not."""
    samples: list[Sample] = []
    faults: list[ScrapeError] = []
    for url in urls:
        try:
            samples += scrape(client, url, now_ms=now_ms)
        except ScrapeError as error:
            samples.append(_up(url, now_ms=now_ms, value=0.0))
            faults.append(error)
    return samples, faults


def parse(text: str, *, url: str, now_ms: int) -> list[Sample]:
    """The samples in a worker's Prometheus text."""
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, KeyError, IndexError) as error:  # what the parser raises on other text
        raise ScrapeError(url, found=f"no Prometheus text ({error})") from error
    instance = httpx.URL(url).netloc.decode()
    return [
        Sample(
            name=sample.name,
            labels=tuple(sorted({**sample.labels, "instance": instance}.items())),
            at_ms=now_ms,
            value=float(sample.value),
        )
        for family in families
        for sample in family.samples
        if sample.name.startswith(PREFIX) and not sample.name.endswith("_created")
    ]


def _up(url: str, *, now_ms: int, value: float) -> Sample:
    instance = httpx.URL(url).netloc.decode()
    return Sample(name=UP, labels=(("instance", instance),), at_ms=now_ms, value=value)
