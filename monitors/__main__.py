"""``python -m monitors``: learn what is normal, and watch.

    python -m monitors fit --worker http://127.0.0.1:8000 --model mnist --seconds 20 --out detector
    python -m monitors watch --worker http://127.0.0.1:8000 --detector detector --json

Judgements, alarms and faults are printed as they come, with ``--json`` one object a line. ``watch`` ends on SIGINT or
SIGTERM, or at the first alarm with ``--until-alarm`` (exit code 3).
"""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

from ckpt import CheckpointError
from ckpt.command_line import Parser, parsed, run_command
from monitors.clock import now_ms
from monitors.decide import Alarm, Policy
from monitors.detector import Judgement
from monitors.detector_file import load_detector, save_detector
from monitors.embedded import Embedded
from monitors.errors import MonitorError
from monitors.features import MIN_ROWS, SPAN_MS
from monitors.store import MetricStore
from monitors.victoria import Victoria
from monitors.watch import Listeners, Watch, learn

EXIT_ERROR, EXIT_ALARM = 1, 3


class _Printer:
    """Says what the watch hears, as text or as JSON lines; remembers whether there was an alarm."""

    def __init__(self, *, as_json: bool, stop: threading.Event, until_alarm: bool) -> None:
        self.alarmed = False
        self._as_json, self._stop, self._until_alarm = as_json, stop, until_alarm

    def judgement(self, judgement: Judgement) -> None:
        window = judgement.window
        text = f"{window.model} version {window.version} scores {judgement.score:.2f} ({window.rows} rows)"
        self.say("judgement", asdict(judgement), text)

    def alarm(self, alarm: Alarm) -> None:
        self.alarmed = True
        reasons = ", ".join(f"{one.figure} {one.found:.4g} (usually {one.usual:.4g})" for one in alarm.reasons[:3])
        text = f"ALARM {alarm.model} version {alarm.suspect_version} scores {alarm.score:.2f}: {reasons}"
        self.say("alarm", asdict(alarm), text)
        if self._until_alarm:
            self._stop.set()

    def fault(self, fault: MonitorError) -> None:
        self.say("fault", {"error": type(fault).__name__, "text": str(fault)}, f"{type(fault).__name__}: {fault}")

    def say(self, event: str, facts: dict[str, object], text: str) -> None:
        """Print one event."""
        print(json.dumps({"event": event, **facts}) if self._as_json else text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 after an error, or 3 after an alarm with ``--until-alarm``."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parsed(_parser(), arguments)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        with closing(Victoria(options.store) if options.store else Embedded()) as store:
            return _fit(options, store, stop) if options.command == "fit" else _watch(options, store, stop)
    except (MonitorError, CheckpointError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_ERROR


def _fit(options: argparse.Namespace, store: MetricStore, stop: threading.Event) -> int:
    printer = _Printer(as_json=options.json, stop=stop, until_alarm=False)
    start_ms = now_ms()
    timer = threading.Timer(options.seconds, stop.set)
    timer.start()
    try:
        with _watch_of(options, store, printer) as watch:
            watch.run(stop, interval_s=options.interval_s)
    finally:
        timer.cancel()
    end_ms = now_ms()
    span = {"span_ms": options.span_ms, "min_rows": options.min_rows}
    detector = learn(store, options.model, start_ms=start_ms, end_ms=end_ms, budget=options.budget, **span)
    root = save_detector(detector, options.out)
    printer.say("fitted", {"out": options.out, "root": root}, f"detector {root} in '{options.out}'")
    return 0


def _watch(options: argparse.Namespace, store: MetricStore, stop: threading.Event) -> int:
    printer = _Printer(as_json=options.json, stop=stop, until_alarm=options.until_alarm)
    with _watch_of(options, store, printer) as watch:
        for folder in options.detector:
            watch.use(load_detector(folder))
        watch.run(stop, interval_s=options.interval_s)
    return EXIT_ALARM if printer.alarmed and options.until_alarm else 0


def _watch_of(options: argparse.Namespace, store: MetricStore, printer: _Printer) -> Watch:
    policy = Policy(needed=options.needed, of=options.of) if options.command == "watch" else None
    listeners = Listeners(on_alarm=printer.alarm, on_judgement=printer.judgement, on_fault=printer.fault)
    return Watch(
        workers=options.worker,
        store=store,
        listeners=listeners,
        policy=policy,
        span_ms=options.span_ms,
        min_rows=options.min_rows,
    )


def _parser() -> Parser:
    parser = Parser(prog="python -m monitors", description="Learn what is normal, and watch.")
    commands = parser.add_subparsers(dest="command", required=True)
    shared = Parser(add_help=False)
    shared.add_argument("--worker", action="append", required=True, metavar="URL", help="a worker; may be repeated")
    shared.add_argument("--store", metavar="URL", help="VictoriaMetrics; left out, the window is kept in memory")
    shared.add_argument("--interval-s", type=float, default=1.0, help="time between two scrapes")
    shared.add_argument("--span-ms", type=int, default=SPAN_MS, help="length of a window")
    shared.add_argument("--min-rows", type=int, default=MIN_ROWS, help="least rows or requests of a window")
    shared.add_argument("--json", action="store_true", help="one JSON object a line")
    fit = commands.add_parser("fit", parents=[shared], help="learn from healthy traffic")
    fit.add_argument("--model", required=True)
    fit.add_argument("--seconds", type=float, default=20.0, help="how long to collect")
    fit.add_argument("--budget", type=float, default=1e-3, help="share of clean windows that may score above 1")
    fit.add_argument("--out", required=True, help="folder of the detector's checkpoint")
    watch = commands.add_parser("watch", parents=[shared], help="judge traffic and raise alarms")
    watch.add_argument("--detector", action="append", required=True, metavar="FOLDER", help="may be repeated")
    watch.add_argument("--needed", type=int, default=3, help="anomalous windows that make an alarm")
    watch.add_argument("--of", type=int, default=4, help="of the last so many")
    watch.add_argument("--until-alarm", action="store_true", help="end at the first alarm, with exit code 3")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
