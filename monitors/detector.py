"""What is normal for a model, learned from its healthy traffic, and how far a window is from it.

Each figure of a window becomes a distance from its healthy centre in units of the change that ``tolerance`` calls
normal. Two members judge the vector of distances: the isolation forest, which sees figures move together, and the
deviation, the largest distance alone, which a single figure cannot hide from. Both are calibrated on clean windows that
they were not fitted on, each with half of the false-alarm budget; the score is the larger of the two.

Clean windows are the observed ones, moved by random changes within tolerance. So a fine-tuned version, or a slow
minute, is inside what the forest has learned, and a few seconds of traffic are enough to learn from. The forest also
sees a few draws far outside, because its thresholds lie within what it was grown on: grown on clean draws alone it
scores a model trained on shuffled labels 0.3 to 0.6, with ``WIDE_SHARE`` of the figures far out 3.4 to 4.4, and a clean
window 0.0 with either (``tests/monitors/synthetic.py``, two seeds, two request rates).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from monitors.calibration import Limit, calibrate
from monitors.errors import TooFewWindowsError
from monitors.features import Figures, Window
from monitors.forest import Forest, Matrix, grow
from monitors.tolerance import FIGURES, SCALES

MIN_WINDOWS = 8  # half to fit on, half to calibrate on
FIT_DRAWS = 2_048
CALIBRATION_DRAWS = 8_000
DEFAULT_BUDGET = 1e-3  # per window; the policy's k-of-n makes an alarm rarer still
WIDE_SHARE = 0.06  # of the figures in the forest's draws; 0.03 scores spoiled models 2.0 to 3.4, 0.10 no clearer
WIDE_UNITS = 10.0
NOISE_UNITS = 2.0  # a unit is at least this many robust standard deviations of the figure's own noise
MAD_TO_SIGMA = 1.4826
FAR = 1e6  # distances end here: a ratio to zero must not reach infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A figure that made the score: what it was, what it usually is, and its share (0..1) in the score."""

    figure: str
    found: float
    usual: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A window's score, 0..1 normal and above 1 anomalous, by member and in all, and the figures behind it."""

    window: Window
    score: float
    members: dict[str, float]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """What is normal for one model.

    ``figures`` are the judged ones, in the order of ``centre`` and ``unit`` (on the scales of ``tolerance.FIGURES``);
    ``class_shares`` the healthy ones; ``limits`` by member.
    """

    model: str
    figures: tuple[str, ...]
    centre: NDArray[np.float64]
    unit: NDArray[np.float64]
    class_shares: Figures
    forest: Forest
    limits: dict[str, Limit]
    budget: float
    learned_roots: tuple[str, ...]

    def judge(self, window: Window) -> Judgement:
        """Score a window of this model.

        A figure that the window lacks counts as usual: outputs that are all NaN have no mean, and their share of
        non-finite values says what is wrong. Of a version that was learned from, figures of load count as usual too:
        the same version answered fast before, so what changed is around it, and no other version would do better.
        """
        found = with_class_distance(window, self.class_shares)
        if window.root in self.learned_roots:
            found = {name: value for name, value in found.items() if not FIGURES[name].of_load}
        row = _folded(_distances([found], self.figures, centre=self.centre, unit=self.unit), self.figures)
        # One more row for each figure, with that figure at its centre: what the score loses is the figure's doing.
        without = np.where(np.eye(len(self.figures), dtype=bool), 0.0, row)
        members = self._member_scores(np.concatenate([row, without]))
        lost = sum(np.maximum(0.0, scores[0] - scores[1:]) for scores in members.values())
        return Judgement(
            window=window,
            score=float(max(scores[0] for scores in members.values())),
            members={name: float(scores[0]) for name, scores in members.items()},
            reasons=self._reasons(found, np.asarray(lost)),
        )

    def _member_scores(self, rows: Matrix) -> dict[str, NDArray[np.float64]]:
        raw = _raw_scores(self.forest, rows)
        return {name: limit.scale(raw[name]) for name, limit in self.limits.items()}

    def _reasons(self, found: Figures, lost: NDArray[np.float64]) -> tuple[Reason, ...]:
        total = float(lost.sum())
        return tuple(
            Reason(
                figure=self.figures[place],
                found=found[self.figures[place]],
                usual=_unscaled(self.figures[place], float(self.centre[place])),
                share=float(lost[place]) / total,
            )
            for place in np.argsort(-lost)
            if lost[place] > 0
        )


def fit(windows: Sequence[Window], *, model: str, budget: float = DEFAULT_BUDGET, seed: int = 0) -> Detector:
    """Learn what is normal from windows of healthy traffic, in the order of time.

    Args:
        windows: At least ``MIN_WINDOWS``; of one root or of several healthy ones. Those in which nothing, or not all
            that was asked, was answered, since a worker was down, teach nothing and are left out.
        model: The model they are of.
        budget: Share of clean windows that may score above 1.
        seed: Names the draws and the forest.

    Raises:
        TooFewWindowsError: There is too little to learn from.
    """
    windows = [window for window in windows if _is_answered(window.figures)]
    if len(windows) < MIN_WINDOWS:
        raise TooFewWindowsError(model, found=len(windows), expected=MIN_WINDOWS)
    # Neighbours overlap, so the two halves are cut by time and not by turns.
    fitted, held_out = windows[: len(windows) // 2], windows[len(windows) // 2 :]
    class_shares = _mean_shares(fitted)
    complete = [with_class_distance(window, class_shares) for window in windows]
    figures = tuple(name for name in FIGURES if all(name in found for found in complete))
    scaled = _scaled(complete[: len(fitted)], figures)
    centre = np.median(scaled, axis=0)
    unit = _units(figures, scaled, centre=centre, spread=float(np.median([f["output_spread"] for f in complete])))
    distances = _distances(complete, figures, centre=centre, unit=unit)
    generator = np.random.default_rng(seed)
    seen = _widened(_drawn(distances[: len(fitted)], FIT_DRAWS, generator), generator)
    forest = grow(_folded(seen, figures), seed=seed)
    clean = _drawn(distances[len(fitted) :], CALIBRATION_DRAWS, generator)
    raw = _raw_scores(forest, _folded(clean, figures))
    return Detector(
        model=model,
        figures=figures,
        centre=centre,
        unit=unit,
        class_shares=class_shares,
        forest=forest,
        limits={name: calibrate(scores, budget=budget / len(raw)) for name, scores in raw.items()},
        budget=budget,
        learned_roots=tuple(sorted({window.root for window in (*fitted, *held_out)})),
    )


def _is_answered(figures: Figures) -> bool:
    """Whether a window is of a model at work: limits learned from an outage would let a fault pass."""
    return "output_spread" in figures and figures.get("error_share", 0.0) <= FIGURES["error_share"].change


def with_class_distance(window: Window, reference: Figures) -> dict[str, float]:
    """The window's figures with ``class_distance``: the share of predictions that would have to change class."""
    if not window.class_shares or not reference:
        return dict(window.figures)
    classes = window.class_shares.keys() | reference.keys()
    apart = sum(abs(window.class_shares.get(kind, 0.0) - reference.get(kind, 0.0)) for kind in classes)
    return {**window.figures, "class_distance": apart / 2}


def _raw_scores(forest: Forest, rows: Matrix) -> dict[str, NDArray[np.float64]]:
    return {"forest": forest.score(rows), "deviation": np.abs(rows).max(axis=1)}


def _mean_shares(windows: Sequence[Window]) -> dict[str, float]:
    classes = sorted({kind for window in windows for kind in window.class_shares})
    return {kind: float(np.mean([window.class_shares.get(kind, 0.0) for window in windows])) for kind in classes}


def _scaled(found: Sequence[Figures], figures: Sequence[str]) -> Matrix:
    """On each figure's scale, shape (windows, figures); NaN where a window lacks one."""
    return np.array(
        [
            [SCALES[FIGURES[name].scale](values[name]) if name in values else np.nan for name in figures]
            for values in found
        ]
    )


def _unscaled(figure: str, value: float) -> float:
    return exp(value) if FIGURES[figure].scale == "log" else value


def _units(
    figures: Sequence[str], scaled: Matrix, *, centre: NDArray[np.float64], spread: float
) -> NDArray[np.float64]:
    """The change that is normal for each figure: the table's, or more where the figure is noisier than that."""
    allowed = [FIGURES[name].change * (spread if FIGURES[name].scale == "spreads" else 1.0) for name in figures]
    noise = MAD_TO_SIGMA * np.median(np.abs(scaled - centre), axis=0)
    return np.maximum(allowed, NOISE_UNITS * noise)


def _distances(
    found: Sequence[Figures], figures: Sequence[str], *, centre: NDArray[np.float64], unit: NDArray[np.float64]
) -> Matrix:
    distances = (_scaled(found, figures) - centre) / unit
    return np.clip(np.nan_to_num(distances, nan=0.0), -FAR, FAR)


def _folded(distances: Matrix, figures: Sequence[str]) -> Matrix:
    """With the falls of figures that may only rise taken out."""
    only_high = np.array([FIGURES[name].only_high for name in figures])
    return np.where(only_high, np.maximum(distances, 0.0), distances)


def _drawn(distances: Matrix, draws: int, generator: np.random.Generator) -> Matrix:
    """Observed windows, each moved by a random change within tolerance."""
    observed = distances[generator.integers(len(distances), size=draws)]
    return observed + generator.uniform(-1.0, 1.0, observed.shape)


def _widened(rows: Matrix, generator: np.random.Generator) -> Matrix:
    """The rows with a few of their figures moved beyond tolerance, up or down."""
    wide = generator.random(rows.shape) < WIDE_SHARE
    far = generator.uniform(1.0, WIDE_UNITS, rows.shape) * generator.choice((-1.0, 1.0), rows.shape)
    return np.where(wide, rows + far, rows)
