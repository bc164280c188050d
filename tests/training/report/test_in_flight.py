"""What each instance holds over time, from the times in the records."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.training.report.in_flight import Stay, legs_of, mean_in_flight, stay, unevenness

from .hand_made import SECOND, request, run


def edges(*seconds: float) -> np.ndarray:
    return np.array([round(s * SECOND) for s in seconds], np.int64)


def made(*rows: tuple[float, float, int]) -> Stay:
    start, end, instance = zip(*rows, strict=True)
    return Stay(edges(*start), edges(*end), np.array(instance, np.int64))


def spans(part: Stay) -> list[tuple[float, float]]:
    return [(s / SECOND, e / SECOND) for s, e in zip(part.start, part.end, strict=True)]


def test_a_stay_reaches_from_the_start_of_one_phase_to_the_end_of_another() -> None:
    row = request(1, 2, 4, 5, 6, 9, reserve=4.5, transfer_start=4.75, prefill=1, decode=2)
    prefill, decode = legs_of(run(row), aggregated=False)
    assert spans(stay(prefill, "queue", "queue")) == [(1, 2)]
    assert spans(stay(prefill, "queue", "prefill")) == [(1, 4)]
    assert spans(stay(decode, "offered", "transfer")) == [(4, 5)]
    assert spans(stay(decode, "join", "decode")) == [(5, 9)]
    assert (stay(prefill, "queue", "queue").instance[0], stay(decode, "join", "decode").instance[0]) == (1, 2)


def test_a_request_that_was_routed_again_counts_from_its_last_decision() -> None:
    prefill, _ = legs_of(run(request(1, 5, 6, 7, 8, 9, reserve=6, transfer_start=6, decided=4)), aggregated=False)
    assert spans(stay(prefill, "queue", "queue")) == [(4, 5)]


@pytest.mark.parametrize(
    ("times", "lengths"),
    [((), [2, 0, 0, 0]), ((2.0,), [1, 1, 0, 0]), ((2.0, 2.5), [1, 0.5, 0.5, 0])],
)
def test_a_failure_ends_the_part_that_it_meets(times: tuple[float, ...], lengths: list[float]) -> None:
    prefill, decode = legs_of(run(request(1, *times, status="failed", end=3.0)), aggregated=False)
    parts = [stay(prefill, "queue", "queue"), stay(prefill, "prefill", "prefill")]
    parts += [stay(decode, "offered", "transfer"), stay(decode, "join", "decode")]
    held = [mean_in_flight(part, edges(0, 10), 1)[0, 0] * 10 for part in parts]
    assert held == pytest.approx(lengths)


def test_a_rejected_request_is_on_no_instance() -> None:
    for leg in legs_of(run(request(1, status="rejected", decided=-1, end=1)), aggregated=False):
        assert leg.instance[0] == -1


def test_mean_counts_are_exact_over_every_interval_and_instance() -> None:
    part = made((0, 4, 0), (1, 3, 0), (2, 10, 1), (5, 6, -1))
    got = mean_in_flight(part, edges(0, 2, 4, 8), 2)
    assert got == pytest.approx(np.array([[1.5, 1.5, 0.0], [0.0, 1.0, 1.0]]), abs=1e-12)


def test_weights_count_what_each_request_brings() -> None:
    got = mean_in_flight(made((0, 1, 0), (0, 4, 0)), edges(0, 2), 1, weights=[100, 7])
    assert got[0, 0] == pytest.approx(57)


def test_what_ends_where_it_began_counts_nothing() -> None:
    assert mean_in_flight(made((1, 1, 0)), edges(0, 2), 1)[0, 0] == 0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(-1, 2)), min_size=1, max_size=12),
    st.lists(st.integers(0, 50), min_size=2, max_size=8, unique=True),
)
def test_mean_counts_agree_with_counting_second_by_second(rows: list[tuple[int, int, int]], cuts: list[int]) -> None:
    part = made(*((min(a, b), max(a, b), i) for a, b, i in rows))
    marks = sorted(cuts)
    got = mean_in_flight(part, edges(*marks), 3)
    for i in range(3):
        for k, (low, high) in enumerate(pairwise(marks)):
            held = sum(
                int(min(a, b) <= second < max(a, b)) for a, b, j in rows if j == i for second in range(low, high)
            )
            assert got[i, k] == pytest.approx(held / (high - low), abs=1e-9)


def test_an_even_pool_has_no_coefficient_of_variation_and_a_lopsided_one_the_largest() -> None:
    assert unevenness(np.ones((4, 6))) == 0
    assert unevenness(np.array([[8.0, 4.0], [0, 0], [0, 0], [0, 0]])) == pytest.approx(np.sqrt(3))
    assert np.isnan(unevenness(np.zeros((2, 3))))


def test_busy_times_weigh_more_than_idle_ones() -> None:
    load = np.array([[2.0, 50.0], [0.0, 50.0]])
    assert unevenness(load) == pytest.approx(0.5 / 25.5)
