"""Intervals: they cover as often as they say, and pair what belongs together."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.training import statistics
from disaggroute.training.statistics import (
    holm,
    mean_over_seeds,
    paired_difference,
    share_in_blocks,
    sign_flip_p,
    student_quantile,
)


@pytest.mark.parametrize(
    ("level", "freedom", "value"), [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.95, 9, 1.833), (0.5, 7, 0.0)]
)
def test_student_quantiles_agree_with_the_printed_tables(level: float, freedom: int, value: float) -> None:
    assert student_quantile(level, freedom) == pytest.approx(value, abs=6e-4)


def test_three_traces_get_their_values_and_no_interval() -> None:
    estimate = mean_over_seeds([0.86, 0.877, 0.855])
    assert estimate.values == (0.86, 0.877, 0.855) and not estimate.has_interval
    assert estimate.mean == pytest.approx(0.864)
    assert not estimate.excludes_zero


def test_an_interval_is_the_same_every_time() -> None:
    values = np.random.default_rng(1).normal(0.8, 0.05, 10)
    assert mean_over_seeds(values) == mean_over_seeds(values)


@pytest.mark.parametrize("n", [5, 20])
def test_intervals_cover_the_true_mean_about_as_often_as_they_say(n: int) -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(200):
        estimate = mean_over_seeds(rng.normal(0.8, 0.05, n))
        assert estimate.low is not None and estimate.high is not None
        hits += estimate.low <= 0.8 <= estimate.high
    assert 0.91 <= hits / 200 <= 0.98


def test_pairing_removes_what_the_traces_have_in_common() -> None:
    rng = np.random.default_rng(3)
    hard = rng.normal(0.8, 0.1, 20)
    ours, theirs = hard + 0.02 + rng.normal(0, 0.005, 20), hard
    difference = paired_difference(ours, theirs)
    alone = mean_over_seeds(ours)
    assert difference.excludes_zero and difference.mean == pytest.approx(0.02, abs=0.005)
    assert difference.high is not None and difference.low is not None
    assert alone.high is not None and alone.low is not None
    assert difference.high - difference.low < (alone.high - alone.low) / 5


def test_a_difference_needs_the_same_seeds() -> None:
    with pytest.raises(ValueError, match="same seeds"):
        paired_difference([1.0, 2.0], [1.0])


def test_an_infinite_value_gives_no_interval() -> None:
    assert not mean_over_seeds([1.0, 2.0, 3.0, np.inf]).has_interval


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.1])
def test_a_confidence_outside_0_and_1_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        mean_over_seeds([1.0, 2.0], confidence=confidence)


def test_no_value_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        mean_over_seeds([])


def test_the_goodput_of_one_trace_is_that_of_all_its_requests() -> None:
    requests = np.array([10, 30] * 20)
    met = np.array([5, 30] * 20)
    estimate = share_in_blocks(met, requests, block=4)
    assert estimate.mean == pytest.approx(35 / 40)
    # Every block holds the same mixture, so nothing is uncertain.
    assert estimate.low == pytest.approx(35 / 40) and estimate.high == pytest.approx(35 / 40)


def test_longer_blocks_widen_the_interval_of_a_trace_that_stays_good_or_bad_for_long() -> None:
    rng = np.random.default_rng(5)
    requests = np.full(400, 20)
    good = np.repeat(rng.random(40) < 0.8, 10)
    met = np.where(good, 19, 5)
    short, long = share_in_blocks(met, requests, block=1), share_in_blocks(met, requests, block=20)
    assert short.low is not None and short.high is not None and long.low is not None and long.high is not None
    assert long.high - long.low > 1.5 * (short.high - short.low)


def test_a_long_trace_is_resampled_piece_by_piece_to_the_same_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    met, requests = rng.integers(0, 20, 300), np.full(300, 20)
    whole = share_in_blocks(met, requests, block=2)
    for most in (1, 1_000, 10**9):
        monkeypatch.setattr(statistics, "MOST_DRAWN", most)
        assert share_in_blocks(met, requests, block=2) == whole


def test_a_short_trace_gets_no_interval() -> None:
    assert not share_in_blocks([1] * 11, [2] * 11, block=3).has_interval


def test_two_policies_on_one_trace_are_compared_block_by_block() -> None:
    rng = np.random.default_rng(6)
    requests = np.full(200, 50)
    theirs = rng.integers(10, 50, 200)
    ours = np.minimum(theirs + 1, 50)
    difference = share_in_blocks(ours, requests, baseline=theirs, block=6)
    assert difference.mean == pytest.approx(0.02, abs=1e-3) and difference.excludes_zero


def test_segments_without_any_request_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one is needed"):
        share_in_blocks([0, 0], [0, 0], block=1)


def test_the_sign_flip_test_counts_every_pattern_of_few_values() -> None:
    # Of the 2^3 patterns of (1, 2, 3) the sums ±6 are as far from zero as the observed one.
    assert sign_flip_p([1, 2, 3]) == pytest.approx(2 / 8)
    assert sign_flip_p([1, 2, 3], greater=True) == pytest.approx(1 / 8)
    assert sign_flip_p([-1, -2, -3], greater=True) == 1
    # (1, 1, −1): sums 1 and 3 are at least 1: four of eight patterns; as far from zero are all.
    assert sign_flip_p([1, 1, -1], greater=True) == pytest.approx(4 / 8)
    assert sign_flip_p([1, 1, -1]) == 1


def test_the_sign_flip_test_draws_patterns_of_many_values() -> None:
    values = np.random.default_rng(3).normal(0.4, 1.0, 40)
    p = sign_flip_p(values)
    # Student's test of the same values, two-sided.
    t = values.mean() / (values.std(ddof=1) / np.sqrt(40))
    assert p == sign_flip_p(values) and p > 0
    assert abs(t) == pytest.approx(student_quantile(1 - p / 2, 39), rel=0.05)
    assert sign_flip_p(np.full(50, 0.1)) == pytest.approx(1 / (statistics.RESAMPLES + 1))


def test_under_the_hypothesis_p_values_are_spread_evenly() -> None:
    rng = np.random.default_rng(5)
    p_values = [sign_flip_p(rng.normal(0, 1, 12)) for _ in range(300)]
    assert np.mean(np.array(p_values) < 0.1) == pytest.approx(0.1, abs=0.05)


def test_values_that_are_not_finite_speak_for_nothing() -> None:
    assert sign_flip_p([1.0, np.inf, 2.0]) == 1
    with pytest.raises(ValueError, match="at least one value"):
        sign_flip_p([])


def test_holm_multiplies_the_smallest_p_value_most_and_keeps_the_order() -> None:
    # Holm 1979: 4·0.01, 3·0.015, 2·0.03 and 1·0.05, which must not fall below the one before it.
    assert holm([0.03, 0.01, 0.05, 0.015]) == pytest.approx((0.06, 0.04, 0.06, 0.045))
    assert holm([0.6, 0.7]) == (1.0, 1.0)
    assert holm([]) == ()
