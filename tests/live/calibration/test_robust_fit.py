"""Fits give back what was planted, also where some measurements are wild."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disaggroute.live.calibration.robust_fit import Floats, fit

PLANTED = st.tuples(st.floats(1e-3, 1e-1), st.floats(0, 1e-3), st.floats(0, 1e-6))


def grid() -> Floats:
    return np.array([[1.0, b, b * c] for b in (1, 2, 4, 8, 16, 32, 64) for c in (70, 600, 2100)])


@settings(max_examples=50, deadline=None)
@given(PLANTED)
def test_what_was_planted_comes_back_exactly_without_noise(planted: tuple[float, float, float]) -> None:
    y = grid() @ np.array(planted)
    found = fit(grid(), y)
    assert np.allclose(found.at(grid()), y, rtol=1e-9)
    assert np.allclose(found.values, planted, rtol=1e-6, atol=1e-12)
    assert found.error_max < 1e-9


@settings(max_examples=50, deadline=None, derandomize=True)  # where all repeats of a corner are wild, no fit can know
@given(PLANTED, st.integers(0, 1000), st.floats(1.5, 100))
def test_measurements_that_are_far_too_late_change_nothing(
    planted: tuple[float, float, float], seed: int, factor: float
) -> None:
    columns = np.repeat(grid(), 3, axis=0)
    y = columns @ np.array(planted)
    wild = np.random.default_rng(seed).choice(len(y), 6, replace=False)
    y[wild] *= factor
    found = fit(columns, y)
    assert np.allclose(found.at(grid()), grid() @ np.array(planted), rtol=1e-6)
    assert found.aside == 6 and not found.kept[wild].any()


def test_noise_moves_predicted_steps_by_less_than_it_is() -> None:
    random = np.random.default_rng(0)
    planted = np.array([13.1e-3, 30.9e-6, 55.3e-9])
    columns = np.repeat(grid(), 4, axis=0)
    y = columns @ planted * random.lognormal(0, 0.02, len(columns))
    y[random.choice(len(y), 8, replace=False)] *= 3
    found = fit(columns, y, resamples=40)
    assert np.abs(found.at(grid()) / (grid() @ planted) - 1).max() < 0.02
    assert (np.abs(found.values - planted) < 4 * found.errors).all()


def test_standard_errors_are_about_what_repeated_fits_scatter() -> None:
    planted = np.array([13.1e-3, 30.9e-6, 55.3e-9])
    found = []
    for seed in range(40):
        y = grid() @ planted * np.random.default_rng(seed).lognormal(0, 0.02, len(grid()))
        found.append(fit(grid(), y).values)
    y = grid() @ planted * np.random.default_rng(99).lognormal(0, 0.02, len(grid()))
    errors = fit(grid(), y, resamples=80).errors
    ratio = errors / np.std(found, axis=0)
    assert (ratio > 0.5).all() and (ratio < 2).all()


def test_a_coefficient_that_would_be_negative_is_0_and_the_others_make_the_best_of_it() -> None:
    x = np.arange(1.0, 9.0)
    found = fit(np.stack([np.ones_like(x), x, x**2], 1), 1 + 2 * x - 0.05 * x**2)
    assert (found.values >= 0).all() and found.values[2] == 0 and found.error_max < 0.1


def test_the_bootstrap_is_seeded() -> None:
    y = grid() @ np.array([1.0, 0.1, 0.0]) * np.random.default_rng(1).lognormal(0, 0.1, len(grid()))
    one, same, other = (fit(grid(), y, resamples=20, seed=seed).errors for seed in (3, 3, 4))
    assert (one == same).all() and (one != other).any()


@pytest.mark.parametrize(
    ("rows", "y", "sentence"),
    [
        (2, [1.0, 1.0], "there are 2 measurements for 3 constants"),
        (4, [1.0, 1.0, 0.0, 1.0], "no time above 0"),
        (4, [1.0, 1.0, float("nan"), 1.0], "no time above 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(rows: int, y: list[float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fit(grid()[:rows], y)
