"""Scrapes → windows: exact differences, one root at a time."""

import math
from collections.abc import Callable

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitors import Embedded, Sample, ScrapeError, tracks, windows_at, windows_between
from monitors.features import Window, quantile
from monitors.scrape import parse, scrape, scrape_all
from tests.monitors.synthetic import V1, V2, SyntheticWorker

T0 = 1_790_000_000_000
WANTED = {"model": "mnist"}


def scraped(samples: list[Sample]) -> tuple:
    store = Embedded()
    store.write(samples)
    return tracks(store.read(WANTED, start_ms=0, end_ms=T0 + 10**6))


def counted(
    *, at_s: float, rows: float, total: float, square: float, root: str = "r1", instance: str = "a:1", **more: float
) -> list[Sample]:
    """One scrape with the sums spelled out: four values a row."""
    labels = (("instance", instance), ("model", "mnist"))

    def one(name: str, value: float, *extra: tuple[str, str]) -> Sample:
        own = tuple(sorted((*labels, *extra)))
        return Sample(name=f"treering_{name}", labels=own, at_ms=T0 + round(at_s * 1000), value=value)

    return [
        one("rows_total", rows),
        one("output_sum", total),
        one("output_square_sum", square),
        one("output_values_total", 4 * rows),
        one("generation", 3),
        one("model_info", 1, ("root", root), ("version", "7")),
        one("requests_total", rows, ("status", "ok")),
        *(one(name, value) for name, value in more.items()),
    ]


def only(windows: tuple[Window, ...]) -> Window:
    (window,) = windows
    return window


def test_a_window_is_the_difference_of_two_scrapes() -> None:
    samples = counted(at_s=0, rows=1000, total=50, square=9000) + counted(at_s=2, rows=1100, total=450, square=11000)

    window = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 2000))

    assert (window.root, window.version, window.generation, window.rows) == ("r1", "7", 3, 100)
    assert (window.start_ms, window.end_ms) == (T0, T0 + 2000)
    assert window.figures["output_mean"] == 1.0
    assert window.figures["output_spread"] == 2.0
    assert window.figures["request_rate"] == 50.0


def test_figures_that_cannot_be_computed_are_absent() -> None:
    samples = counted(at_s=0, rows=0, total=0, square=0) + counted(at_s=2, rows=100, total=0, square=1)

    window = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 2000))

    assert set(window.figures) == {"output_mean", "output_spread", "nonfinite_share", "error_share", "request_rate"}
    assert window.class_shares == {}


def test_a_sum_of_outputs_may_fall_without_looking_like_a_restart() -> None:
    samples = counted(at_s=0, rows=100, total=0, square=0) + counted(at_s=2, rows=200, total=-800, square=2000)

    window = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 2000))

    assert window.figures["output_mean"] == -2.0


def test_a_restart_loses_nothing_that_was_counted_after_it() -> None:
    samples = (
        counted(at_s=0, rows=5000, total=70_000, square=90_000)
        + counted(at_s=1, rows=5100, total=70_400, square=90_400)
        + counted(at_s=2, rows=60, total=240, square=240)
    )

    window = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 2000))

    assert window.rows == 160
    assert window.figures["output_mean"] == 1.0


def predicted(at_s: float, **classes: float) -> list[Sample]:
    """The class counts of a scrape; a worker shows a class once it has predicted it."""
    labels = (("instance", "a:1"), ("model", "mnist"))
    return [
        Sample(
            name="treering_predictions_total",
            labels=tuple(sorted((*labels, ("class", kind)))),
            at_ms=T0 + round(at_s * 1000),
            value=count,
        )
        for kind, count in classes.items()
    ]


def test_a_class_that_a_restarted_worker_does_not_show_yet_was_not_counted() -> None:
    samples = (
        counted(at_s=0, rows=1000, total=0, square=0)
        + predicted(0, cat=700, dog=300)
        + counted(at_s=1, rows=0, total=0, square=0)
        + counted(at_s=3, rows=100, total=400, square=400)
        + predicted(3, cat=60, dog=40)
    )

    since = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 3000, span_ms=2000))
    across = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 3000, span_ms=3000))

    for window in (since, across):
        assert (window.rows, window.class_shares) == (100, {"cat": 0.6, "dog": 0.4})


def test_a_class_that_a_scrape_shows_late_was_counted_before() -> None:
    samples = (
        predicted(-1, cat=500)
        + counted(at_s=0, rows=1000, total=0, square=0)
        + counted(at_s=2, rows=1100, total=0, square=0)
        + predicted(2, cat=600)
    )

    window = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 2000))

    assert window.class_shares == {"cat": 1.0}


def test_no_answer_of_the_version_before_is_in_a_window() -> None:
    samples = (
        counted(at_s=0, rows=0, total=0, square=0, root="old")
        + counted(at_s=1, rows=1000, total=4000, square=4000, root="new")  # mixed: flipped since the last scrape
        + counted(at_s=2, rows=1100, total=4000, square=4000, root="new")
    )

    window = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 2000))

    assert (window.root, window.rows, window.figures["output_mean"]) == ("new", 100, 0.0)
    assert windows_at(scraped(samples), model="mnist", end_ms=T0 + 1000) == ()


def test_a_root_that_comes_back_starts_a_new_window() -> None:
    samples = (
        counted(at_s=0, rows=0, total=0, square=0, root="a")
        + counted(at_s=0.5, rows=500, total=9000, square=9e6, root="b")
        + counted(at_s=1, rows=1000, total=9000, square=9e6, root="a")
        + counted(at_s=1.5, rows=1100, total=9400, square=9e6 + 400, root="a")
    )

    window = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 1500))

    assert (window.start_ms, window.rows, window.figures["output_mean"]) == (T0 + 1000, 100, 1.0)


def test_workers_of_one_root_are_added_up_and_others_kept_apart() -> None:
    samples = []
    for instance, root, mean in (("a:1", "r1", 1), ("b:1", "r1", 3), ("c:1", "r2", 9)):
        for at_s, rows in ((0, 0), (2, 100)):
            samples += counted(at_s=at_s, rows=rows, total=4 * rows * mean, square=0, root=root, instance=instance)

    first, second = windows_at(scraped(samples), model="mnist", end_ms=T0 + 2000)

    assert (first.root, first.instances, first.rows) == ("r1", ("a:1", "b:1"), 200)
    assert (first.figures["output_mean"], first.figures["request_rate"]) == (2.0, 100.0)
    assert (second.root, second.figures["output_mean"]) == ("r2", 9.0)


def test_with_little_traffic_a_window_reaches_further_back() -> None:
    samples = [one for at_s in range(20) for one in counted(at_s=at_s, rows=10 * at_s, total=0, square=0)]
    built = scraped(samples)

    window = only(windows_at(built, model="mnist", end_ms=T0 + 19_000))

    assert (window.rows, window.end_ms - window.start_ms) == (80, 8000)
    assert windows_at(built, model="mnist", end_ms=T0 + 19_000, min_rows=1000) == ()


@pytest.mark.parametrize("answered", [0, 5])
def test_requests_that_nearly_all_fail_make_a_window_that_says_nothing_of_outputs(answered: int) -> None:
    samples = counted(at_s=0, rows=100, total=0, square=0) + counted(at_s=2, rows=100 + answered, total=3, square=9)
    failed = [(T0, 0.0), (T0 + 2000, 90.0)]
    labels = (("instance", "a:1"), ("model", "mnist"), ("status", "error"))
    samples += [
        Sample(name="treering_requests_total", labels=labels, at_ms=at_ms, value=value) for at_ms, value in failed
    ]

    window = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 2000))

    assert (window.rows, window.figures["error_share"]) == (answered, 90 / (90 + answered))
    assert not {"output_mean", "output_spread", "margin_mean", "nonfinite_share"} & window.figures.keys()
    assert window.class_shares == {}


def test_a_worker_that_is_gone_is_left_out() -> None:
    samples = counted(at_s=0, rows=0, total=0, square=0) + counted(at_s=2, rows=100, total=0, square=0)

    assert windows_at(scraped(samples), model="mnist", end_ms=T0 + 30_000) == ()


def test_a_scrape_that_the_store_shows_in_part_is_not_used() -> None:
    samples = counted(at_s=0, rows=0, total=0, square=0) + counted(at_s=2, rows=100, total=400, square=400)
    part = [one for one in counted(at_s=3, rows=900, total=1, square=1) if one.name != "treering_output_sum"]

    window = only(windows_at(scraped(samples + part), model="mnist", end_ms=T0 + 3000))

    assert (window.end_ms, window.rows) == (T0 + 2000, 100)


def test_a_series_without_its_companions_is_no_worker() -> None:
    lonely = [one for one in counted(at_s=0, rows=1, total=0, square=0) if one.name != "treering_generation"]

    assert scraped(lonely) == ()


def test_windows_between_end_at_every_scrape_and_begin_inside() -> None:
    samples = [one for at_s in range(11) for one in counted(at_s=at_s, rows=100 * at_s, total=0, square=0)]

    windows = windows_between(scraped(samples), model="mnist", start_ms=T0 + 4000, end_ms=T0 + 8000)

    spans = [(window.start_ms - T0, window.end_ms - T0) for window in windows]
    assert spans == [(4000, 6000), (5000, 7000), (6000, 8000)]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.25, 0.05), (0.5, 0.1), (0.72, 0.15), (0.94, 0.2), (0.945, 0.3), (0.99, 0.4), (1.0, 0.4)]
)
def test_a_quantile_is_linear_inside_its_bucket_and_ends_at_the_last_bound(share: float, expected: float) -> None:
    buckets = {0.1: 50.0, 0.2: 94.0, 0.4: 95.0, math.inf: 100.0}

    assert quantile(buckets, share) == pytest.approx(expected)


def test_a_histogram_without_observations_has_no_quantile() -> None:
    assert quantile({0.1: 0.0, math.inf: 0.0}, 0.5) is None
    assert quantile({}, 0.5) is None


@given(seed=st.integers(0, 2**32 - 1), cuts=st.lists(st.integers(1, 19), max_size=6, unique=True))
def test_how_often_a_worker_is_scraped_does_not_change_a_window(seed: int, cuts: list[int]) -> None:
    random = np.random.default_rng(seed)
    rows = np.cumsum(random.integers(4, 50, 21))
    totals = np.cumsum(random.normal(0, 100, 21))
    squares = np.cumsum(random.uniform(500, 900, 21) * 4)

    def window(steps: list[int]) -> Window:
        return only(
            windows_at(
                scraped(
                    [
                        one
                        for step in steps
                        for one in counted(at_s=step / 10, rows=rows[step], total=totals[step], square=squares[step])
                    ]
                ),
                model="mnist",
                end_ms=T0 + 2000,
            )
        )

    often, seldom = window([0, *sorted(cuts), 20]), window([0, 20])

    assert often.rows == seldom.rows
    assert often.figures == pytest.approx(seldom.figures)


def test_what_a_worker_exposes_gives_every_figure() -> None:
    worker = SyntheticWorker(seed=1)
    samples = []
    for step in range(6):
        worker.serve(V1, seconds=0.5)
        samples += worker.samples(now_ms=T0 + 500 * step)

    window = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 2500))

    assert window.figures["output_mean"] == pytest.approx(V1.mean, abs=0.3)
    assert window.figures["output_spread"] == pytest.approx(V1.spread, rel=0.1)
    assert window.figures["margin_mean"] == pytest.approx(V1.margin, rel=0.2)
    assert window.figures["latency_mean"] == pytest.approx(0.0034, rel=0.2)
    assert 0.004 < window.figures["latency_p99"] < 0.02
    assert window.figures["nonfinite_share"] == 0
    assert sum(window.class_shares.values()) == pytest.approx(1)


def test_the_root_and_generation_follow_an_update() -> None:
    worker = SyntheticWorker(seed=1)
    samples = []
    for step, behaviour in enumerate([V1] * 4 + [V2] * 4):
        worker.serve(behaviour, seconds=0.5)
        samples += worker.samples(now_ms=T0 + 500 * step)

    window = only(windows_at(scraped(samples), model="mnist", end_ms=T0 + 3500))

    assert (window.root, window.version, window.generation) == (V2.root, "2", 2)
    assert window.start_ms == T0 + 2000


def test_a_scrape_labels_the_instance_and_keeps_our_series_only(serve_text: Callable[..., str]) -> None:
    worker = SyntheticWorker(seed=1)
    worker.serve(V1, seconds=1)
    url = serve_text(lambda: worker.text() + "python_gc_total 3\n")

    with httpx.Client(trust_env=False) as client:
        samples = scrape(client, url, now_ms=T0)

    assert {dict(sample.labels)["instance"] for sample in samples} == {url.removeprefix("http://")}
    assert {sample.at_ms for sample in samples} == {T0}
    names = {sample.name for sample in samples}
    assert {"treering_up", "treering_rows_total", "treering_request_seconds_bucket"} <= names
    assert not any(name.endswith("_created") or name.startswith("python") for name in names)


def test_a_worker_that_is_down_is_counted_and_the_others_are_read(serve_text: Callable[..., str]) -> None:
    worker = SyntheticWorker(seed=1)
    worker.serve(V1, seconds=1)
    url = serve_text(worker.text)

    with httpx.Client(trust_env=False) as client:
        samples, faults = scrape_all(client, ["http://127.0.0.1:9", url], now_ms=T0)

    up = {dict(sample.labels)["instance"]: sample.value for sample in samples if sample.name == "treering_up"}
    assert up == {"127.0.0.1:9": 0.0, url.removeprefix("http://"): 1.0}
    (fault,) = faults
    assert fault.url == "http://127.0.0.1:9/metrics"


@pytest.mark.parametrize("text", ["<html>", "treering_rows_total{model=", "treering_rows_total one"])
def test_text_that_is_no_exposition_is_refused(text: str) -> None:
    with pytest.raises(ScrapeError, match="no Prometheus text"):
        parse(text, url="http://127.0.0.1:8000", now_ms=T0)
