"""What each instance holds over time, from the times in the records."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.training.report.occupancy import Stay, mean_in_flight, stays, unevenness

from .hand_made import SECOND, request, run


def edges(*seconds: float) -> np.ndarray:
    return np.array([round(s * SECOND) for s in seconds], np.int64)


def stay(*rows: tuple[float, float, int]) -> Stay:
    start, end, instance = zip(*rows, strict=True)
    return Stay(edges(*start), edges(*end), np.array(instance, np.int64))


def spans(part: Stay) -> list[tuple[float, float]]:
    return [(s / SECOND, e / SECOND) for s, e in zip(part.start, part.end, strict=True)]


def test_a_request_is_queued_prefilled_transferred_and_decoded_in_turn() -> None:
    life = stays(run(request(1, 2, 4, 5, 6, 9, prefill=1, decode=2)), aggregated=False)
    assert [spans(part) for part in (life.queued, life.prefill, life.transit, life.decode)] == [
        [(1, 2)],
        [(2, 4)],
        [(4, 5)],
        [(5, 9)],
    ]
    assert (life.queued.instance[0], life.prefill.instance[0]) == (1, 1)
    assert (life.transit.instance[0], life.decode.instance[0]) == (2, 2)


def test_in_an_aggregated_cluster_nothing_is_transferred() -> None:
    row = request(1, 2, 4, prefill=3, decode=3, first_token=4, last_token=9, end=9)
    life = stays(run(row), aggregated=True)
    assert spans(life.transit) == [(4, 4)] and spans(life.decode) == [(4, 9)]
    assert life.prefill.instance[0] == life.decode.instance[0] == 3


@pytest.mark.parametrize(
    ("times", "end", "lengths"),
    [
        ((), 3.0, [2, 0, 0, 0]),
        ((2.0,), 3.0, [1, 1, 0, 0]),
        ((2.0, 2.5), 3.0, [1, 0.5, 0.5, 0]),
        ((2.0, 2.5, 2.75), 3.0, [1, 0.5, 0.25, 0.25]),
    ],
)
def test_a_failure_ends_the_part_that_it_meets(times: tuple[float, ...], end: float, lengths: list[float]) -> None:
    life = stays(run(request(1, *times, status="failed", end=end)), aggregated=False)
    parts = (life.queued, life.prefill, life.transit, life.decode)
    assert [e - s for part in parts for s, e in spans(part)] == lengths


def test_a_rejected_request_is_nowhere() -> None:
    life = stays(run(request(1, status="rejected", decided=-1, end=1)), aggregated=False)
    for part in (life.queued, life.prefill, life.transit, life.decode):
        assert spans(part) == [(1, 1)] and part.instance[0] == -1


def test_a_request_that_was_routed_again_counts_from_its_last_decision() -> None:
    life = stays(run(request(1, 5, 6, 7, 8, 9, decided=4)), aggregated=False)
    assert spans(life.queued) == [(4, 5)]


def test_an_output_of_one_token_that_ends_with_its_prefill_is_in_no_later_part() -> None:
    life = stays(run(request(1, 2, 4, first_token=4, last_token=4, end=4, output=1)), aggregated=False)
    assert spans(life.prefill) == [(2, 4)]
    assert spans(life.transit) == spans(life.decode) == [(4, 4)]


def test_mean_counts_are_exact_over_every_interval_and_instance() -> None:
    part = stay((0, 4, 0), (1, 3, 0), (2, 10, 1), (5, 6, -1))
    got = mean_in_flight(part, edges(0, 2, 4, 8), 2)
    assert got == pytest.approx(np.array([[1.5, 1.5, 0.0], [0.0, 1.0, 1.0]]), abs=1e-12)


def test_weights_count_what_each_request_brings() -> None:
    got = mean_in_flight(stay((0, 1, 0), (0, 4, 0)), edges(0, 2), 1, weights=[100, 7])
    assert got[0, 0] == pytest.approx(57)


def test_what_ends_where_it_began_counts_nothing() -> None:
    assert mean_in_flight(stay((1, 1, 0)), edges(0, 2), 1)[0, 0] == 0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(-1, 2)), min_size=1, max_size=12),
    st.lists(st.integers(0, 50), min_size=2, max_size=8, unique=True),
)
def test_mean_counts_agree_with_counting_second_by_second(rows: list[tuple[int, int, int]], cuts: list[int]) -> None:
    part = stay(*((min(a, b), max(a, b), i) for a, b, i in rows))
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
