from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.traces.statistics import dispersion
from disaggroute.envs.workloads.arrivals import Gamma, Mmpp, OnOff, Poisson, arrival_times
from disaggroute.envs.workloads.intensity import integrate, reached

BURSTY = Mmpp(process="mmpp", ratio=17, on_fraction=0.26, mean_on_s=20)
ON_OFF = OnOff(process="on-off", on_fraction=0.5, mean_on_s=10)
PROCESSES = [Poisson(), Gamma(process="gamma", cv=1.1), Gamma(process="gamma", cv=5.6), ON_OFF, BURSTY]


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_arrivals_are_sorted_inside_the_duration_and_reproducible(process: Poisson) -> None:
    times = arrival_times(process, 5, 1000, 3)
    assert times.dtype == np.int64
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < 1000 * PS_PER_S
    assert (times == arrival_times(process, 5, 1000, 3)).all()
    assert times[0] != arrival_times(process, 5, 1000, 4)[0]


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_the_mean_rate_is_the_one_asked_for(process: Poisson) -> None:
    counts = [len(arrival_times(process, 5, 4000, seed)) for seed in range(40)]
    assert np.mean(counts) / 4000 == pytest.approx(5, rel=0.03)


@pytest.mark.parametrize("cv", [0.5, 1.0, 1.1, 5.6])
def test_gamma_gaps_have_their_coefficient_of_variation(cv: float) -> None:
    gaps = np.diff(arrival_times(Gamma(process="gamma", cv=cv), 10, 20_000, 0))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_the_modulated_process_is_bursty_over_many_seconds_and_poisson_is_not() -> None:
    bursty, poisson = (arrival_times(p, 10, 20_000, 0) for p in (BURSTY, Poisson()))
    assert dispersion(poisson, 10) == pytest.approx(1.0, abs=0.1)
    assert (dispersion(bursty, 10) or 0) > 20


def test_on_runs_have_the_ratio_and_the_share_of_the_time_asked_for() -> None:
    counts = np.bincount(arrival_times(BURSTY, 50, 20_000, 1) // PS_PER_S, minlength=20_000)
    off = 50 / (17 * 0.26 + 0.74)
    busy = counts > 4 * off  # between the two intensities
    assert busy.mean() == pytest.approx(0.26, abs=0.03)
    assert counts[busy].mean() / counts[~busy].mean() == pytest.approx(17, rel=0.1)


def test_off_runs_are_empty() -> None:
    gaps = np.diff(arrival_times(ON_OFF, 100, 5_000, 0)) / PS_PER_S
    silences = gaps[gaps > 0.5]
    assert silences.mean() == pytest.approx(10 + 0.5, rel=0.2)
    assert silences.sum() / 5_000 == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_a_small_change_of_rate_draws_nothing_anew(process: Poisson) -> None:
    before, after = (arrival_times(process, rate, 2000, 7) for rate in (5.0, 5.000_001))
    n = min(len(before), len(after))
    assert abs(len(after) - len(before)) <= 1
    moved = (before[:n] - after[:n]) / PS_PER_S
    assert (moved >= 0).all()
    assert np.median(moved) < 0.001


def test_a_higher_rate_only_brings_every_arrival_forward() -> None:
    slow, fast = (arrival_times(BURSTY, rate, 2000, 7) for rate in (5, 8))
    assert (fast[: len(slow)] < slow).all()
    assert len(fast) > len(slow)


def test_bursts_stay_where_they_are_when_the_rate_grows() -> None:
    def busiest(rate: float) -> set[int]:
        counts = np.bincount(arrival_times(BURSTY, rate, 3000, 2) // (5 * PS_PER_S), minlength=600)
        return set(np.flatnonzero(counts > 2.5 * counts.mean()))

    one, ten = busiest(20), busiest(200)
    assert len(one & ten) / len(one | ten) > 0.9


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_a_longer_duration_only_adds_arrivals(process: Poisson) -> None:
    runs = [arrival_times(process, 50, duration, 5) for duration in (100, 1000, 4000)]
    for short, long in pairwise(runs):
        assert (long[: len(short)] == short).all()


@pytest.mark.parametrize(
    ("rate", "duration", "sentence"),
    [
        (0, 10, "rate is 0; it must be greater than 0 requests per second"),
        (-1, 10, "rate is -1; it must be greater than 0"),
        (float("inf"), 10, "rate is inf; it must be .* finite"),
        (float("nan"), 10, "rate is nan"),
        (1, 0, "duration is 0 s; it must be greater than 0 and at most 100 days"),
        (1, 1e9, "duration is 1000000000.0 s; .* at most 100 days"),
    ],
)
def test_a_rate_or_duration_out_of_range_is_refused(rate: float, duration: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        arrival_times(Poisson(), rate, duration, 0)


def test_a_rate_so_low_that_nothing_comes_gives_no_arrivals() -> None:
    assert len(arrival_times(Poisson(), 1e-9, 1, 0)) == 0
    assert len(arrival_times(ON_OFF, 1e-9, 1, 0)) == 0


@given(
    seed=st.integers(0, 2**32 - 1), first=st.integers(0, 1), on=st.floats(1, 20), off=st.sampled_from([0.0, 0.01, 0.7])
)
def test_the_compiled_intensity_has_the_bits_that_numpy_gives(seed: int, first: int, on: float, off: float) -> None:
    rng = np.random.default_rng(seed)
    drawn, count = rng.standard_exponential(300), int(rng.integers(1, 300))
    is_first = np.arange(300) % 2 == first
    runs = drawn * np.where(is_first, 2.0, 0.3)
    edges, mass = 1.5 + np.cumsum(runs), 0.25 + np.cumsum(runs * np.where(is_first, on, off))
    written, integral = np.full(301, 1.5), np.full(301, 0.25)
    assert integrate(drawn, first, (2.0, 0.3), (on, off), float(edges[count - 1]), written, integral) == count
    edges, mass = np.append(1.5, edges[:count]), np.append(0.25, mass[:count])
    assert (written[: count + 1] == edges).all() and (integral[: count + 1] == mass).all()

    rate = float(rng.uniform(1, 30))
    points = np.sort(np.concatenate([rng.uniform(mass[0], mass[-1] + 1, 200), mass, np.nextafter(mass, 0)])) * rate
    points = points[points / rate >= mass[0]]
    scaled = points / rate
    cuts = np.searchsorted(scaled, mass)
    with np.errstate(invalid="ignore", divide="ignore"):  # a run without intensity has no points
        slope = np.diff(mass) / np.diff(edges)
        since, below, slope = (np.repeat(each, np.diff(cuts)) for each in (edges[:-1], mass[:-1], slope))
        expected = since + (scaled[: cuts[-1]] - below) / slope
    seconds = np.empty(len(points))
    assert reached(points, rate, edges, mass, seconds) == len(expected)
    assert (seconds[: len(expected)] == expected).all()
