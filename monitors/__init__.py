"""Watch what models answer in production, and say when a version is at fault.

Workers count in sums that only grow. A watch scrapes them into a metric store, takes the difference of two scrapes as a
*window* of one root's behaviour (mean and spread of outputs, margin, class shares, latency, rate, errors, non-finite
values), judges it, and turns k bad windows of n into one *alarm* that names the suspect root and the figures behind it:

    scrape → store → tracks → windows → Detector.judge → decide → on_alarm
             VictoriaMetrics     pure     isolation forest    pure, k of n
             or memory                    and deviation

    watch = Watch(workers=urls, store=Embedded(), listeners=Listeners(on_alarm=roll_back))
    ...                                              # healthy traffic, watch.run(stop, interval_s=0.5) in a thread
    watch.use(learn(store, "mnist", start_ms=start, end_ms=end))

Scores: 0..1 is normal, above 1 anomalous. A detector is fitted on the healthy champion and tolerates what ``tolerance``
calls normal in the next version; it is stored as flat arrays in a checkpoint, and nothing is unpickled. Host figures
come from ``sources``. Whether an alarm rolls back, and how, is decided elsewhere. Errors are in ``monitors.errors``.
"""

from monitors.clock import now_ms
from monitors.decide import Alarm, Policy, State, decide
from monitors.detector import Detector, Judgement, Reason, fit
from monitors.detector_file import load_detector, save_detector
from monitors.embedded import Embedded
from monitors.errors import (
    InvalidDetectorError,
    MonitorError,
    ScrapeError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    TooFewWindowsError,
)
from monitors.features import Window, windows_at, windows_between
from monitors.store import MetricStore, Sample, Series
from monitors.totals import Track, tracks
from monitors.victoria import Victoria
from monitors.watch import Listeners, Watch, learn

__all__ = [
    "Alarm",
    "Detector",
    "Embedded",
    "InvalidDetectorError",
    "Judgement",
    "Listeners",
    "MetricStore",
    "MonitorError",
    "Policy",
    "Reason",
    "Sample",
    "ScrapeError",
    "Series",
    "State",
    "StoreError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "TooFewWindowsError",
    "Track",
    "Victoria",
    "Watch",
    "Window",
    "decide",
    "fit",
    "learn",
    "load_detector",
    "now_ms",
    "save_detector",
    "tracks",
    "windows_at",
    "windows_between",
]
