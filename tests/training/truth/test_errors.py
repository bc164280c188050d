"""Errors: of requests, and of distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.training.truth.errors import errors, kolmogorov_smirnov

times = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=50).map(np.array)


def test_errors_of_a_hand_made_example() -> None:
    found = errors(np.array([1.0, 2.0, 4.0, np.nan]), np.array([1.1, 1.8, 4.0, 7.0]))
    assert found.requests == 3
    assert found.signed == pytest.approx((0.0, 0.1, 0.1))
    assert found.absolute == pytest.approx((0.1, 0.2, 0.2))
    assert found.relative == pytest.approx((0.1, 0.1, 0.1))
    assert found.bias == 0.0
    assert found.wasserstein == pytest.approx(0.1)
    assert found.ks == pytest.approx(1 / 3)


@given(times)
def test_what_is_the_same_has_no_error(values: np.ndarray) -> None:
    found = errors(values, values.copy())
    assert found.absolute == found.relative == (0.0, 0.0, 0.0)
    assert found.ks == found.wasserstein == found.bias == 0.0


@given(times, st.randoms(use_true_random=False))
def test_the_order_of_requests_changes_no_distance_of_the_distributions(values: np.ndarray, random: object) -> None:
    shuffled = values.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = errors(values, shuffled)
    assert found.ks == found.wasserstein == 0.0


@given(times, st.floats(0.5, 100.0))
def test_a_shift_of_all_times_is_their_distance(values: np.ndarray, shift: float) -> None:
    found = errors(values, values + shift)
    assert found.wasserstein == pytest.approx(shift) and found.signed == pytest.approx((shift,) * 3)


@given(times, times)
def test_the_kolmogorov_smirnov_distance_is_symmetric_and_a_share(a: np.ndarray, b: np.ndarray) -> None:
    assert kolmogorov_smirnov(a, b) == kolmogorov_smirnov(b, a)
    assert 0.0 <= kolmogorov_smirnov(a, b) <= 1.0
    assert kolmogorov_smirnov(a, a.max() + b) == 1.0


def test_times_that_nobody_knows_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="no request has both times"):
        errors(np.array([np.nan]), np.array([1.0]))
