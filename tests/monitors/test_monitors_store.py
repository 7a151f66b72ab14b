"""One suite for both metric stores, and what VictoriaMetrics' client says when the server is wrong or gone."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from monitors import Embedded, MetricStore, Sample, StoreRefusedError, StoreUnavailableError, Victoria

T0 = 1_790_000_000_000
MODELS = (f"model-{number}" for number in itertools.count())


@pytest.fixture(params=["embedded", pytest.param("victoria", marks=pytest.mark.integration)])
def store(request: pytest.FixtureRequest) -> Iterator[MetricStore]:
    made = Victoria(request.getfixturevalue("victoria_url")) if request.param == "victoria" else Embedded()
    with closing(made):
        yield made


@pytest.fixture
def model() -> str:
    """A name that no other test of this run writes to."""
    return next(MODELS)


def sample(name: str, model: str, *, at_ms: int, value: float, **labels: str) -> Sample:
    return Sample(name=name, labels=tuple(sorted({"model": model, **labels}.items())), at_ms=at_ms, value=value)


def read_all(store: MetricStore, model: str, *, samples: int) -> dict[str, list[tuple[int, float]]]:
    """What the store holds of a model, as soon as it shows that many samples; a server may take a second."""
    deadline = time.monotonic() + 20
    while True:
        series = store.read({"model": model}, start_ms=T0, end_ms=T0 + 60_000)
        found = {one.name: list(zip(one.at_ms.tolist(), one.values.tolist(), strict=True)) for one in series}
        if sum(map(len, found.values())) >= samples or time.monotonic() > deadline:
            return found


def test_samples_come_back_in_order_to_twelve_digits(store: MetricStore, model: str) -> None:
    values = [123456.789012, -98765.4321, 0.0, 1e6 / 3, 2e6]
    store.write(sample("a", model, at_ms=T0 + 7 * place, value=value) for place, value in enumerate(values))

    (found,) = read_all(store, model, samples=5).values()

    assert [at_ms for at_ms, _ in found] == [T0 + 7 * place for place in range(5)]
    assert [value for _, value in found] == pytest.approx(values, rel=1e-12, abs=1e-6)


def test_only_series_with_all_the_labels_are_read(store: MetricStore, model: str) -> None:
    other = f"{model}-other"
    store.write(
        [
            sample("a", model, at_ms=T0, value=1, instance="one"),
            sample("a", model, at_ms=T0, value=2, instance="two"),
            sample("a", other, at_ms=T0, value=3, instance="one"),
        ]
    )

    (series,) = store.read({"model": model, "instance": "two"}, start_ms=T0, end_ms=T0)

    assert series.values.tolist() == [2]
    assert series.label("instance") == "two"
    assert series.label("absent") == ""


def test_both_ends_of_the_span_are_included_and_nothing_beyond(store: MetricStore, model: str) -> None:
    store.write(sample("a", model, at_ms=T0 + step, value=step) for step in (0, 1000, 2000, 3000))

    (series,) = store.read({"model": model}, start_ms=T0 + 1000, end_ms=T0 + 2000)

    assert series.at_ms.tolist() == [T0 + 1000, T0 + 2000]


def test_a_nan_is_no_sample(store: MetricStore, model: str) -> None:
    store.write([sample("a", model, at_ms=T0, value=math.nan), sample("b", model, at_ms=T0, value=1)])

    assert read_all(store, model, samples=1) == {"b": [(T0, 1.0)]}


def test_labels_of_any_text_come_back(store: MetricStore, model: str) -> None:
    awkward = 'quote " backslash \\ newline \n brace } comma , é'
    store.write([sample("a", model, at_ms=T0, value=1, text=awkward, le="+Inf")])

    (series,) = store.read({"model": model, "text": awkward}, start_ms=T0, end_ms=T0)

    assert (series.label("text"), series.label("le")) == (awkward, "+Inf")


def test_a_series_that_is_new_under_a_filter_already_read_is_seen_at_once(store: MetricStore, model: str) -> None:
    assert store.read({"model": model}, start_ms=T0, end_ms=T0 + 60_000) == ()
    for number in range(3):
        store.write([sample(f"series_{number}", model, at_ms=T0, value=number)])

        names = [series.name for series in store.read({"model": model}, start_ms=T0, end_ms=T0 + 60_000)]

        assert names == [f"series_{known}" for known in range(number + 1)]


def test_more_samples_of_a_known_series_are_seen_soon(store: MetricStore, model: str) -> None:
    for step in range(5):
        store.write([sample("a", model, at_ms=T0 + step, value=step)])

    assert read_all(store, model, samples=5) == {"a": [(T0 + step, float(step)) for step in range(5)]}


def test_writing_nothing_is_allowed(store: MetricStore, model: str) -> None:
    store.write([])

    assert store.read({"model": model}, start_ms=T0, end_ms=T0 + 1) == ()


def test_the_embedded_store_forgets_what_is_older_than_its_retention(model: str) -> None:
    store = Embedded(retention_s=10)
    store.write([sample("gone", model, at_ms=T0, value=1), sample("kept", model, at_ms=T0 + 5_000, value=2)])
    store.write([sample("kept", model, at_ms=T0 + 12_000, value=3)])

    (series,) = store.read({"model": model}, start_ms=0, end_ms=T0 + 60_000)

    assert (series.name, series.values.tolist()) == ("kept", [2, 3])


def test_a_server_that_is_down_is_named_with_the_way_out() -> None:
    with (
        closing(Victoria("http://127.0.0.1:9")) as store,
        pytest.raises(
            StoreUnavailableError, match=r"no metric store answers at http://127\.0\.0\.1:9 .*victoria-metrics"
        ),
    ):
        store.read({"model": "m"}, start_ms=T0, end_ms=T0)


def test_a_server_that_is_no_metric_store_is_noticed(serve_text: Callable[[Callable[[], str]], str]) -> None:
    url = serve_text(lambda: "<html>hello</html>")
    with closing(Victoria(url)) as store:
        with pytest.raises(StoreRefusedError, match=r"<html>hello.*is it VictoriaMetrics\?"):
            store.read({"model": "m"}, start_ms=T0, end_ms=T0)
        with pytest.raises(StoreRefusedError, match=r"status 200.*expected status 204"):
            store.write([sample("a", "m", at_ms=T0, value=1)])
