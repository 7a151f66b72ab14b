"""The whole loop against workers on HTTP, in memory and in VictoriaMetrics, and the command line."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import monitors
from monitors import Alarm, Embedded, Judgement, Listeners, MetricStore, StoreUnavailableError, Victoria, Watch, learn
from monitors.__main__ import main
from monitors.scrape import parse
from monitors.totals import GENERATION, REQUIRED
from serving.metrics import Metrics
from tests.monitors.synthetic import V1, V2, V3, V4, SyntheticWorker

T0 = 1_795_000_000_000
STEP_MS = 500


class Fleet:
    """Two workers on HTTP; half a second of traffic passes whenever one is scraped."""

    def __init__(self, serve_text: Callable[[Callable[[], str]], str]) -> None:
        self.live = V1
        self._workers = [SyntheticWorker(seed=place) for place in range(2)]
        self.urls = [serve_text(self._scraped(worker)) for worker in self._workers]

    def _scraped(self, worker: SyntheticWorker) -> Callable[[], str]:
        def text() -> str:
            worker.serve(self.live, seconds=STEP_MS / 1000)
            return worker.text()

        return text


@pytest.fixture
def fleet(serve_text: Callable[[Callable[[], str]], str]) -> Fleet:
    return Fleet(serve_text)


@pytest.fixture(params=["embedded", pytest.param("victoria", marks=pytest.mark.integration)])
def store(request: pytest.FixtureRequest) -> Iterator[MetricStore]:
    made = Victoria(request.getfixturevalue("victoria_url")) if request.param == "victoria" else Embedded()
    with closing(made):
        yield made


class Driver:
    """A watch whose clock the test moves; VictoriaMetrics is made to show at once what it would show in a second."""

    def __init__(self, watch: Watch, store: MetricStore) -> None:
        self.watch, self.now_ms = watch, T0 + 10**6 * next(_EPOCHS)
        self._store = store

    def play(self, steps: int) -> list[Judgement]:
        judged: list[Judgement] = []
        for _ in range(steps):
            self.now_ms += STEP_MS
            judged += self.watch.tick(now_ms=self.now_ms)
            self._settle()
        return judged

    def _settle(self) -> None:
        if isinstance(self._store, Victoria):
            httpx.get(f"{self._store.url}/internal/force_flush", trust_env=False).raise_for_status()


_EPOCHS = iter(range(1, 100))


def test_a_spoiled_version_is_reported_once_and_healthy_ones_never(fleet: Fleet, store: MetricStore) -> None:
    alarms: list[Alarm] = []
    with Watch(workers=fleet.urls, store=store, listeners=Listeners(on_alarm=alarms.append)) as watch:
        driver = Driver(watch, store)
        start_ms = driver.now_ms
        driver.play(24)
        watch.use(learn(store, "mnist", start_ms=start_ms, end_ms=driver.now_ms))
        for fleet.live in (V1, V2, V3):
            assert driver.play(6)
        assert alarms == []

        fleet.live = V4
        spoiled = driver.play(12)

    (alarm,) = alarms
    assert (alarm.suspect_root, alarm.suspect_version, alarm.model) == (V4.root, "4", "mnist")
    assert alarm.generation == 4
    assert alarm.reasons[0].figure == "margin_mean"
    assert {judgement.window.root for judgement in spoiled[-8:]} == {V4.root}


def test_the_score_is_a_series_of_its_own(fleet: Fleet) -> None:
    store = Embedded()
    with Watch(workers=fleet.urls, store=store, listeners=Listeners(on_alarm=print)) as watch:
        driver = Driver(watch, store)
        start_ms = driver.now_ms
        driver.play(24)
        watch.use(learn(store, "mnist", start_ms=start_ms, end_ms=driver.now_ms))
        (judgement,) = driver.play(1)

    series = store.read({"model": "mnist", "root": V1.root}, start_ms=0, end_ms=driver.now_ms)
    scores = {one.name: one.values.tolist() for one in series}
    assert scores["treering_anomaly_score"] == [judgement.score]


def test_a_window_that_was_judged_is_not_judged_again(fleet: Fleet) -> None:
    store = Embedded()
    with Watch(workers=fleet.urls, store=store, listeners=Listeners(on_alarm=print)) as watch:
        driver = Driver(watch, store)
        start_ms = driver.now_ms
        driver.play(24)
        watch.use(learn(store, "mnist", start_ms=start_ms, end_ms=driver.now_ms))

        assert len(watch.tick(now_ms=driver.now_ms + 1)) == 1
        assert watch.tick(now_ms=driver.now_ms + 1) == ()


def test_a_worker_that_is_down_is_told_and_the_rest_is_judged(fleet: Fleet) -> None:
    faults: list[monitors.MonitorError] = []
    store = Embedded()
    listeners = Listeners(on_alarm=print, on_fault=faults.append)
    with Watch(workers=[*fleet.urls, "http://127.0.0.1:9"], store=store, listeners=listeners) as watch:
        driver = Driver(watch, store)
        start_ms = driver.now_ms
        driver.play(24)
        watch.use(learn(store, "mnist", start_ms=start_ms, end_ms=driver.now_ms))
        assert len(driver.play(1)) == 1

    assert len(faults) == 25
    assert isinstance(faults[0], monitors.ScrapeError)


def test_a_store_that_is_down_does_not_end_the_watch_and_stop_does() -> None:
    stop = threading.Event()
    faults: list[monitors.MonitorError] = []

    def told(fault: monitors.MonitorError) -> None:
        faults.append(fault)
        if len(faults) == 3:
            stop.set()

    with closing(Victoria("http://127.0.0.1:9")) as store:
        listeners = Listeners(on_alarm=print, on_fault=told)
        with Watch(workers=["http://127.0.0.1:9"], store=store, listeners=listeners) as watch:
            watch.run(stop, interval_s=0)

    assert isinstance(faults[1], StoreUnavailableError)


def test_too_little_traffic_is_said_when_learning(fleet: Fleet) -> None:
    with pytest.raises(monitors.TooFewWindowsError, match="0 windows"):
        learn(Embedded(), "mnist", start_ms=0, end_ms=T0)


@pytest.fixture
def keep_signal_handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_the_command_line_learns_and_then_ends_at_the_alarm(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str], keep_signal_handlers: None
) -> None:
    folder = str(tmp_path / "detector")
    workers = [part for url in fleet.urls for part in ("--worker", url)]
    shared = [*workers, "--interval-s", "0.02", "--span-ms", "100", "--json"]

    assert main(["fit", *shared, "--model", "mnist", "--seconds", "3", "--out", folder]) == 0
    fleet.live = replace(V4, rate=V1.rate)
    assert main(["watch", *shared, "--detector", folder, "--until-alarm"]) == 3

    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[0]["event"] == "fitted"
    (alarm,) = (event for event in events if event["event"] == "alarm")
    assert alarm["suspect_root"] == V4.root
    assert alarm["reasons"][0]["figure"] == "margin_mean"


def test_an_error_is_one_line_and_a_code(capsys: pytest.CaptureFixture[str], keep_signal_handlers: None) -> None:
    code = main(["watch", "--worker", "http://127.0.0.1:9", "--detector", "/nowhere/detector"])

    assert code == 1
    assert "/nowhere/detector" in capsys.readouterr().err


def test_help_is_there_without_a_server() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(monitors.__file__).parents[1])}
    command = [sys.executable, "-m", "monitors", "watch", "--help"]

    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert "--until-alarm" in shown.stdout
    read, write = os.pipe()
    os.close(read)
    gone = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert gone.stderr == ""


def test_sigterm_ends_collecting(
    serve_text: Callable[[Callable[[], str]], str],
    keep_signal_handlers: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def terminate() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return ""

    url = serve_text(terminate)
    code = main(["fit", "--worker", url, "--model", "mnist", "--seconds", "600", "--out", str(tmp_path / "detector")])

    assert code == 1
    assert "TooFewWindowsError: 0 windows" in capsys.readouterr().err


def test_a_real_workers_exposition_has_what_a_track_reads() -> None:
    names = {sample.name for sample in parse(Metrics(model="mnist").text().decode(), url="http://a:1", now_ms=T0)}

    assert {*REQUIRED, GENERATION, "treering_output_nonfinite_total", "treering_margin_sum"} <= names
    assert {"treering_requests_total", "treering_request_seconds_bucket"} <= names


def test_the_package_exports_what_it_says() -> None:
    assert set(monitors.__all__) == {
        "Alarm", "Detector", "Embedded", "InvalidDetectorError", "Judgement", "Listeners", "MetricStore",
        "MonitorError", "Policy", "Reason", "Sample", "ScrapeError", "Series", "State", "StoreError",
        "StoreRefusedError", "StoreUnavailableError", "TooFewWindowsError", "Track", "Victoria", "Watch", "Window",
        "decide", "fit", "learn", "load_detector", "now_ms", "save_detector", "tracks", "windows_at", "windows_between",
    }  # fmt: skip
    assert all(hasattr(monitors, name) for name in monitors.__all__)
