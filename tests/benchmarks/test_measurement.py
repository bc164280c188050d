"""A number has a spread, a goal and a process that stays on one core."""

from __future__ import annotations

import os

import pytest

from disaggroute.benchmarks.goals import GOALS, keeps
from disaggroute.benchmarks.measurement import Result, at_least, count_name, pinned


def test_a_result_is_the_median_of_its_repeats_with_the_lowest_and_the_highest() -> None:
    result = Result.of("clone/300", "µs", [3.0, 1.0, 2.0], in_flight=300)
    assert (result.value, result.min, result.max, result.repeats) == (2.0, 1.0, 3.0, 3)
    assert result.details == {"in_flight": 300}


@pytest.mark.parametrize(("unit", "better"), [("requests/s", True), ("×", True), ("ns/request", False), ("s", False)])
def test_of_speeds_more_is_better_and_of_costs_less(unit: str, better: bool) -> None:
    result = Result.of("x", unit, [2.0])
    assert result.more_is_better is better
    assert keeps(result, 1.0) is better and keeps(result, 3.0) is not better
    assert keeps(result, 2.0)


def test_the_aim_of_every_goal_is_harder_than_what_must_be() -> None:
    speeds = ("simulator/", "vector/", "env")
    for name, goal in GOALS.items():
        assert goal.aim is None or (goal.aim > goal.must) is name.startswith(speeds), name


@pytest.mark.parametrize(
    ("count", "name"),
    [(1_000_000, "1M"), (250_000, "250k"), (300, "300"), (1_500, "1500"), (1_500_000, "1500k")],
)
def test_counts_are_named_briefly(count: int, name: str) -> None:
    assert count_name(count) == name


def test_a_count_below_the_least_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="repeats is 0; it must be at least 1"):
        at_least("repeats", 0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no core affinity")
def test_a_pinned_process_has_one_core_and_gets_all_back() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyError), pinned():
        assert len(os.sched_getaffinity(0)) == 1 and os.sched_getaffinity(0) <= before
        raise KeyError
    assert os.sched_getaffinity(0) == before
