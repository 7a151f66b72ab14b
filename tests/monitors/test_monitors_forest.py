"""The flat forest equals scikit-learn's, and believes no file."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import IsolationForest

from monitors.calibration import Limit, calibrate
from monitors.forest import SAMPLE_ROWS, Forest, average_path, grow


def drawn(rows: int, features: int, *, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, features)) * np.geomspace(1e-3, 1e3, features)


@pytest.fixture(scope="module")
def forest() -> Forest:
    return grow(drawn(300, 4, seed=1), seed=0)


@settings(max_examples=12, deadline=None)
@given(rows=st.integers(2, 700), features=st.integers(1, 12), trees=st.integers(1, 40), seed=st.integers(0, 1000))
def test_scores_equal_scikit_learns(rows: int, features: int, trees: int, seed: int) -> None:
    seen = drawn(rows, features, seed=seed)
    asked = np.concatenate([seen, drawn(50, features, seed=seed + 1) * 20])

    ours = grow(seen, seed=seed, trees=trees).score(asked)

    oracle = IsolationForest(n_estimators=trees, max_samples=min(SAMPLE_ROWS, rows), random_state=seed).fit(seen)
    np.testing.assert_allclose(ours, -oracle.score_samples(asked), rtol=0, atol=1e-9)


def test_equal_rows_grow_trees_of_one_leaf_and_score_as_scikit_learn_says() -> None:
    same = np.ones((40, 3))

    ours = grow(same, seed=0, trees=5).score(same[:2])

    oracle = IsolationForest(n_estimators=5, max_samples=40, random_state=0).fit(same)
    np.testing.assert_allclose(ours, -oracle.score_samples(same[:2]), rtol=0, atol=1e-9)


def test_an_outlier_scores_higher_than_the_crowd(forest: Forest) -> None:
    scores = forest.score(np.array([np.zeros(4), np.geomspace(1e-3, 1e3, 4) * 30]))

    assert scores[0] < 0.5 < scores[1]


@pytest.mark.parametrize(("rows", "expected"), [(0, 0.0), (1, 0.0), (2, 1.0), (256, 10.244770920)])
def test_the_average_path_is_the_papers(rows: int, expected: float) -> None:
    assert average_path(np.array([rows]))[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("array", "node", "value", "message"),
    [
        ("left", 0, 0, "do not lie below"),  # a loop on the root, whose right child goes on
        ("right", 0, -1, "do not lie below"),
        ("left", 0, 10**6, "do not lie below"),
        ("feature", 0, 4, "does not exist"),
        ("feature", 0, -1, "does not exist"),
        ("roots", 3, 10**6, "does not exist"),
        ("roots", 0, -1, "does not exist"),
        ("path", -1, np.nan, "not finite"),
    ],
)
def test_a_forest_that_leads_nowhere_is_refused(
    forest: Forest, array: str, node: int, value: float, message: str
) -> None:
    spoiled = getattr(forest, array).copy()
    spoiled[node] = value

    with pytest.raises(ValueError, match=message):
        replace(forest, **{array: spoiled})


def test_arrays_of_different_lengths_are_refused(forest: Forest) -> None:
    with pytest.raises(ValueError, match="differ in length"):
        replace(forest, threshold=forest.threshold[:-1])


def test_an_empty_forest_is_refused(forest: Forest) -> None:
    with pytest.raises(ValueError, match="needs a tree"):
        replace(forest, roots=forest.roots[:0])


def test_the_limit_is_the_rank_that_the_budget_names() -> None:
    clean = np.arange(1, 1000, dtype=np.float64)  # 999 scores: the rank for 1 % is 990

    limit = calibrate(clean, budget=0.01)

    assert limit == Limit(usual=500.0, most=990.0)
    np.testing.assert_allclose(limit.scale(np.array([0.0, 500.0, 745.0, 990.0, 1235.0])), [0, 0, 0.5, 1, 1.5])


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), budget=st.sampled_from([0.01, 0.05, 0.2]))
def test_no_more_clean_scores_than_the_budget_exceed_the_limit(seed: int, budget: float) -> None:
    random = np.random.default_rng(seed)

    limit = calibrate(random.gamma(2.0, size=4000), budget=budget)

    # Five standard deviations of both the calibration's and the test's draws.
    exceeded = float((random.gamma(2.0, size=4000) > limit.most).mean())
    assert exceeded <= budget + 5 * np.sqrt(2 * budget * (1 - budget) / 4000)


def test_too_few_scores_cannot_promise_a_small_budget() -> None:
    with pytest.raises(ValueError, match=r"99 clean scores cannot promise .* 0\.001"):
        calibrate(np.arange(99.0), budget=0.001)


def test_scores_that_never_differ_give_no_limit() -> None:
    with pytest.raises(ValueError, match="must rise"):
        calibrate(np.ones(100), budget=0.1)
