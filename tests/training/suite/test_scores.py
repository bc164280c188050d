"""Scores: interquartile mean, stratified bootstrap and performance profiles on known numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.training.suite.scores import (
    RESAMPLES,
    Stratum,
    interquartile_mean,
    overall,
    pooled,
    profile,
    resampled,
)


def ones(values: np.ndarray) -> np.ndarray:
    return np.ones(values.shape[-1])


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    values = np.array([100.0, 1, 2, 3, 4, 5, 6, -70])
    assert interquartile_mean(values, ones(values)) == pytest.approx((2 + 3 + 4 + 5) / 4)


def test_a_value_across_a_quartile_counts_with_its_part_inside() -> None:
    values = np.array([0.0, 1, 2, 3, 10])  # A fifth of the weight each; the middle half cuts 1 and 3.
    inside = 0.15 * 1 + 0.2 * 2 + 0.15 * 3
    assert interquartile_mean(values, ones(values)) == pytest.approx(inside / 0.5)


def test_a_scenario_weighs_the_same_however_many_seeds_it_has() -> None:
    many, few = Stratum(np.zeros(30)), Stratum(np.ones(2))
    values, weights = pooled([many, few])
    assert (values.shape, weights.sum()) == ((32,), 2.0)
    assert interquartile_mean(values, weights) == pytest.approx(0.5)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_the_interquartile_mean_lies_between_the_extremes_and_knows_no_order(values: list[float]) -> None:
    array = np.array(values)
    found = interquartile_mean(array, ones(array))
    assert array.min() - 1e-9 <= found <= array.max() + 1e-9
    assert interquartile_mean(np.sort(array), ones(array)) == pytest.approx(float(found))
    assert interquartile_mean(array + 1, ones(array)) == pytest.approx(float(found) + 1)


def test_the_profile_is_the_share_of_runs_above_each_threshold() -> None:
    strata = [Stratum(np.array([0.0, 1.0])), Stratum(np.array([0.5]))]
    values, weights = pooled(strata)
    assert profile(values, weights, np.array([-1.0, 0.0, 0.5, 1.0])).tolist() == [1.0, 0.75, 0.25, 0.0]


def test_seeds_are_drawn_scenario_by_scenario() -> None:
    strata = [Stratum(np.array([1.0, 2.0, 3.0])), Stratum(np.array([10.0, 20.0]))]
    drawn = resampled(strata)
    assert drawn.shape == (RESAMPLES, 5)
    assert set(np.unique(drawn[:, :3])) == {1.0, 2.0, 3.0} and set(np.unique(drawn[:, 3:])) == {10.0, 20.0}
    assert np.array_equal(drawn, resampled(strata))


def test_the_interval_is_that_of_known_seeds() -> None:
    spread = np.random.default_rng(0).normal(0.5, 0.2, (3, 40))
    found = overall([Stratum(row) for row in spread])
    assert found.low is not None and found.high is not None
    assert found.low < 0.5 < found.high
    # The interquartile mean of normal values has about 1.2 times the variance of the mean.
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.2 * np.sqrt(1.2 / 120), rel=0.2)
    assert found.values == pytest.approx(tuple(spread.mean(axis=1)))


def test_equal_scores_have_an_interval_of_no_width() -> None:
    found = overall([Stratum(np.full(5, 0.7)), Stratum(np.full(4, 0.7))])
    assert (found.mean, found.low, found.high) == pytest.approx((0.7, 0.7, 0.7))


def test_few_seeds_have_a_score_without_an_interval() -> None:
    found = overall([Stratum(np.array([0.0, 1.0, 0.5])), Stratum(np.full(9, 1.0))])
    assert found.low is None and found.high is None


def test_one_recorded_trace_is_drawn_by_its_blocks() -> None:
    trace = np.linspace(0.0, 1.0, RESAMPLES)
    drawn = Stratum(np.array([0.5]), trace).drawn(3)
    assert drawn.shape == (RESAMPLES, 1) and drawn.mean() == pytest.approx(0.5)
