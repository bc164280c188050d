"""The running median of `length-threshold`."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.policies.compiled.median import MEDIAN_WORDS, median_of, observe

from .plain import P2Median


@numba.njit
def put(address: int, value: float) -> None:
    """Inner functions of the core can only be called from compiled code."""
    observe(address, value)


@numba.njit
def get(address: int) -> float:
    return median_of(address)


def medians(values: list[float]) -> list[float]:
    """The compiled median before each value, and after all."""
    state = np.zeros(MEDIAN_WORDS, np.int64)
    found = [get(state.ctypes.data)]
    for value in values:
        put(state.ctypes.data, float(value))
        found.append(get(state.ctypes.data))
    return found


def plain_medians(values: list[float]) -> list[float]:
    plain = P2Median()
    found = [plain.value()]
    for value in values:
        plain.add(float(value))
        found.append(plain.value())
    return found


@given(st.lists(st.integers(1, 300), max_size=80))
def test_it_is_the_published_algorithm_to_the_last_bit(values: list[float]) -> None:
    assert medians(values) == plain_medians(values)


@given(st.lists(st.integers(1, 3), max_size=40))
def test_it_is_the_published_algorithm_when_most_values_are_equal(values: list[float]) -> None:
    assert medians(values) == plain_medians(values)


def test_nothing_is_long_before_the_first_value() -> None:
    assert medians([]) == [math.inf]


def test_up_to_four_values_give_the_exact_lower_median() -> None:
    assert medians([9, 3, 5, 1])[1:] == [9, 3, 5, 3]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", ["uniform", "lognormal", "two humps"])
def test_it_comes_close_to_the_exact_median(shape: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    draws = {
        "uniform": rng.uniform(0, 1000, 3000),
        "lognormal": rng.lognormal(5, 1, 3000),
        "two humps": np.where(rng.random(3000) < 0.7, rng.normal(100, 10, 3000), rng.normal(900, 10, 3000)),
    }[shape]
    below = float((draws < medians(draws.tolist())[-1]).mean())
    assert below == pytest.approx(0.5, abs=0.05)
