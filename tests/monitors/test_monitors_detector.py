"""What the detector tells apart, measured on synthetic workers with the statistics of the real versions.

The healthy windows of the champion are all that it learns from. Clean: the champion, a fine-tuned head, a few steps of
training, a machine that is eight times slower. Spoiled: models trained on shuffled labels, and single faults.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ckpt
from monitors import (
    Detector,
    Embedded,
    InvalidDetectorError,
    TooFewWindowsError,
    Window,
    fit,
    load_detector,
    save_detector,
    tracks,
    windows_between,
)
from tests.monitors.synthetic import V1, V2, V3, V4, V4_FRESH, Behaviour, SyntheticWorker

T0 = 1_790_000_000_000
STEP_MS = 500
LEARN_STEPS, WATCH_STEPS = 30, 20  # 15 s of healthy traffic, 10 s of the other

SLOW = replace(V1, root="slow", latency_s=8 * V1.latency_s, rate=V1.rate / 4)
CLEAN = {"v1": V1, "v2": V2, "v3": V3, "slow": SLOW}
SPOILED = {
    "shuffled labels, from v3": V4,
    "shuffled labels, from fresh weights": V4_FRESH,
    "1 % of outputs not finite": replace(V1, root="nan", nonfinite_share=0.01),
    "30 % of requests fail": replace(V1, root="errors", error_share=0.3),
    "60 times slower": replace(V1, root="latency", latency_s=60 * V1.latency_s, rate=V1.rate / 4),
    "one class in half of the answers": replace(V1, root="class", shares=(0.55, *(0.05,) * 9)),
}


def observed(then: Behaviour, *, seed: int, rate: float = V1.rate) -> tuple[tuple[Window, ...], tuple[Window, ...]]:
    """Windows of v1 by two workers, and of another version or a fault that follows it."""
    store = Embedded()
    workers = [SyntheticWorker(seed=100 * seed + place, url=f"http://w{place}:8000") for place in range(2)]
    scale = rate / V1.rate
    for step in range(LEARN_STEPS + WATCH_STEPS):
        behaviour = V1 if step < LEARN_STEPS else then
        for worker in workers:
            worker.serve(replace(behaviour, rate=behaviour.rate * scale), seconds=STEP_MS / 1000)
            store.write(worker.samples(now_ms=T0 + step * STEP_MS))
    changed_ms = T0 + LEARN_STEPS * STEP_MS
    seen = tracks(store.read({"model": "mnist"}, start_ms=T0, end_ms=T0 + 10**6))
    healthy = windows_between(seen, model="mnist", start_ms=T0, end_ms=changed_ms - 1)
    return healthy, windows_between(seen, model="mnist", start_ms=changed_ms, end_ms=T0 + 10**6)


@pytest.fixture(scope="module")
def detector() -> Detector:
    healthy, _ = observed(V1, seed=0)
    return fit(healthy, model="mnist")


@pytest.mark.parametrize("name", CLEAN)
def test_healthy_versions_and_a_slow_machine_stay_normal(name: str) -> None:
    scores = []
    for seed in range(3):
        healthy, later = observed(CLEAN[name], seed=seed)
        judge = fit(healthy, model="mnist").judge
        scores += [judge(window).score for window in later]

    assert len(scores) > 40
    assert max(scores) < 1


@pytest.mark.parametrize("name", SPOILED)
def test_every_window_of_a_spoiled_version_is_anomalous(name: str) -> None:
    scores = []
    for seed in range(2):
        healthy, later = observed(SPOILED[name], seed=seed)
        judge = fit(healthy, model="mnist").judge
        scores += [judge(window).score for window in later]

    assert len(scores) > 25
    assert min(scores) > 1


@pytest.mark.parametrize("spoiled", [V4, V4_FRESH])
def test_the_isolation_forest_alone_sees_shuffled_labels(spoiled: Behaviour) -> None:
    healthy, later = observed(spoiled, seed=3)
    detector = fit(healthy, model="mnist")

    members = [detector.judge(window).members for window in later]

    assert min(scores["forest"] for scores in members) > 2
    assert min(scores["deviation"] for scores in members) > 2


def test_little_traffic_is_enough() -> None:
    healthy, spoiled = observed(V4, seed=5, rate=20)
    _, tuned = observed(V2, seed=5, rate=20)
    detector = fit(healthy, model="mnist")

    assert min(detector.judge(window).score for window in spoiled) > 1
    assert max(detector.judge(window).score for window in tuned) < 1


def test_an_alarm_names_the_figure_that_made_it(detector: Detector) -> None:
    named = {}
    for name, behaviour in SPOILED.items():
        _, later = observed(behaviour, seed=0)
        named[name] = detector.judge(later[-1]).reasons[0].figure

    assert named == {
        "shuffled labels, from v3": "margin_mean",
        "shuffled labels, from fresh weights": "margin_mean",
        "1 % of outputs not finite": "nonfinite_share",
        "30 % of requests fail": "error_share",
        "60 times slower": "latency_mean",
        "one class in half of the answers": "class_distance",
    }


def test_a_reason_tells_what_was_found_and_what_is_usual(detector: Detector) -> None:
    _, later = observed(V4, seed=0)

    reason = detector.judge(later[-1]).reasons[0]

    assert reason.found == pytest.approx(V4.margin, rel=0.2)
    assert reason.usual == pytest.approx(V1.margin, rel=0.2)
    assert sum(one.share for one in detector.judge(later[-1]).reasons) == pytest.approx(1)


def test_faster_answers_and_fewer_errors_are_no_fault(detector: Detector) -> None:
    _, later = observed(replace(V1, root="fast", latency_s=V1.latency_s / 100), seed=0)

    assert max(detector.judge(window).score for window in later) < 1


def test_a_version_that_was_learned_from_is_not_at_fault_for_a_slow_machine(detector: Detector) -> None:
    _, later = observed(replace(V1, latency_s=60 * V1.latency_s, rate=V1.rate / 12), seed=0)
    of_another = [replace(window, root="sha256:new") for window in later]

    assert max(detector.judge(window).score for window in later) < 1
    assert min(detector.judge(window).score for window in of_another) > 1


def test_a_window_that_lacks_a_figure_is_judged_by_the_others(detector: Detector) -> None:
    _, later = observed(V1, seed=0)
    dead = replace(later[-1], figures={"nonfinite_share": 1.0, "error_share": 0.0}, class_shares={})

    judgement = detector.judge(dead)

    assert judgement.score > 1
    assert judgement.reasons[0].figure == "nonfinite_share"


def test_the_same_windows_and_seed_give_the_same_detector() -> None:
    healthy, later = observed(V4, seed=0)

    scores = [fit(healthy, model="mnist", seed=9).judge(later[0]).members for _ in range(2)]

    assert scores[0] == scores[1]


def test_a_model_without_classes_is_watched_by_what_it_has() -> None:
    def without_classes(windows: tuple[Window, ...]) -> list[Window]:
        kept = ("output_mean", "output_spread", "latency_mean", "error_share", "request_rate")
        return [
            replace(window, figures={name: window.figures[name] for name in kept}, class_shares={})
            for window in windows
        ]

    healthy, later = map(without_classes, observed(V4, seed=0))

    detector = fit(healthy, model="mnist")

    assert set(detector.figures) == {"output_mean", "output_spread", "latency_mean", "error_share", "request_rate"}
    assert min(detector.judge(window).score for window in later) > 1


def test_windows_in_which_nothing_was_answered_teach_nothing() -> None:
    healthy, _ = observed(V1, seed=5)
    refused = {name: value for name, value in healthy[3].figures.items() if not name.startswith(("output", "margin"))}
    down = replace(healthy[3], rows=0, figures=refused, class_shares={})

    learned = fit([*healthy[:3], down, *healthy[4:]], model="mnist")

    assert learned.figures == fit(healthy, model="mnist").figures
    with pytest.raises(TooFewWindowsError):
        fit([down] * 100, model="mnist")


def test_an_outage_in_the_learned_stretch_does_not_widen_the_limits() -> None:
    healthy, later = observed(V4, seed=6)
    outage = [replace(one, figures={**one.figures, "error_share": 0.6}) for one in healthy[-5:]]

    learned = fit([*healthy[:-5], *outage], model="mnist")

    assert min(learned.judge(window).score for window in later) > 1


def test_too_few_windows_say_how_many_are_needed() -> None:
    healthy, _ = observed(V1, seed=0)

    with pytest.raises(TooFewWindowsError, match="7 windows of healthy traffic for model 'mnist', expected at least 8"):
        fit(healthy[:7], model="mnist")


def test_a_detector_survives_a_checkpoint_bit_for_bit(detector: Detector, tmp_path: Path) -> None:
    _, later = observed(V4, seed=0)

    root = save_detector(detector, tmp_path / "detector")
    again = load_detector(tmp_path / "detector")

    assert [again.judge(window) for window in later] == [detector.judge(window) for window in later]
    assert again.learned_roots == (V1.root,)
    assert save_detector(again, tmp_path / "copy") == root


def test_a_detector_can_be_replaced_where_it_lies(detector: Detector, tmp_path: Path) -> None:
    save_detector(detector, tmp_path / "detector")

    root = save_detector(replace(detector, budget=0.5), tmp_path / "detector")

    assert load_detector(tmp_path / "detector").budget == 0.5
    assert ckpt.read_manifest(tmp_path / "detector").root == root


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2"),
        ({"figures": ["margin_mean", "mood"]}, "known are output_mean"),
        ({"figures": ["margin_mean"]}, "1 figures, 9 centres"),
        ({"limits": {"forest": [1.0, 0.5]}}, "must rise"),
        ({"forest": {}}, "KeyError"),
    ],
)
def test_a_stored_detector_that_contradicts_itself_is_refused(
    detector: Detector, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    save_detector(detector, tmp_path / "good")
    ckpt.save({**ckpt.load(tmp_path / "good"), **change}, tmp_path / "bad")

    with pytest.raises(InvalidDetectorError, match=message):
        load_detector(tmp_path / "bad")


def test_a_damaged_detector_is_not_loaded(detector: Detector, tmp_path: Path) -> None:
    save_detector(detector, tmp_path / "detector")
    (payload,) = (tmp_path / "detector").glob("weights-*.safetensors")
    content = bytearray(payload.read_bytes())
    content[-1] ^= 1
    payload.write_bytes(content)

    with pytest.raises(ckpt.CheckpointError):
        load_detector(tmp_path / "detector")


def test_false_alarms_stay_within_the_budget_when_versions_change_as_tolerated(detector: Detector) -> None:
    """Every figure of every clean window is moved anew within tolerance: what the budget of 1 in 1000 promises for."""
    _, later = observed(V1, seed=0)
    random = np.random.default_rng(1)
    base = np.array([[window.figures["margin_mean"], window.figures["output_spread"]] for window in later])

    alarms = 0
    for _ in range(1000):
        window = later[random.integers(len(later))]
        margin, spread = base[random.integers(len(base))] * 1.5 ** random.uniform(-1, 1, 2)
        moved = {**window.figures, "margin_mean": margin, "output_spread": spread}
        alarms += detector.judge(replace(window, figures=moved)).score > 1

    assert alarms <= 3
