"""The burst that a timeline shows."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.envs.window import Window
from disaggroute.training.report.burst import choose_policies, split_misses, worst_burst
from disaggroute.training.stored_records import StoredRecords

from .hand_made import SECOND, request, run

WINDOW = Window(10 * SECOND, 210 * SECOND)


def arrivals(*missed: float) -> StoredRecords:
    """A request every second, and one more for each miss."""
    rows = [request(t, t, t, t, t, t) for t in range(210)]
    rows += [request(t, t, t, t, t + 5, t + 5) for t in missed]
    return run(*sorted(rows, key=lambda row: row["arrival"]), warmup=10)


def test_the_burst_lies_where_the_misses_of_the_policies_differ_most() -> None:
    both = [30.5, 31.5, 32.5, 33.5, 34.5]
    runs = {"a": arrivals(*both), "b": arrivals(*both, 150.5, 151.5)}
    burst = worst_burst(runs, WINDOW)
    assert burst.why == "the policies' misses differ most"
    assert burst.end - burst.start == 60 * SECOND
    middle = (burst.start + burst.end) / 2 / SECOND
    assert middle == pytest.approx(151, abs=1.5)


def test_with_one_policy_it_lies_where_most_requests_miss() -> None:
    burst = worst_burst({"a": arrivals(30.5, 150.5, 151.5)}, WINDOW)
    assert burst.why == "most requests miss their targets"
    assert burst.start < 150 * SECOND < burst.end


def test_without_misses_it_lies_where_most_requests_arrive() -> None:
    extra = [request(100 + k / 10, 100 + k / 10, *[100 + k / 10] * 4) for k in range(50)]
    rows = sorted([*(request(t, *[t] * 5) for t in range(210)), *extra], key=lambda row: row["arrival"])
    burst = worst_burst({"a": run(*rows, warmup=10)}, WINDOW)
    assert burst.why == "most requests arrive"
    assert burst.start <= 100 * SECOND and burst.end >= 105 * SECOND


def test_what_arrives_in_the_warm_up_does_not_count() -> None:
    burst = worst_burst({"a": arrivals(3.5, 4.5, 5.5, 150.5)}, WINDOW)
    assert burst.start < 150 * SECOND < burst.end


def test_a_request_counts_by_when_it_was_due_however_late_it_was_sent() -> None:
    window = Window(10 * SECOND, 70 * SECOND)
    early, late = request(10.01, *[10.01] * 5, due=9.99), request(70.01, *[70.01] * 4, 99, due=69.99)
    got = run(early, request(40, *[40.0] * 5), late, warmup=10)
    burst = worst_burst({"a": got}, window)
    assert (burst.holds(got) & got.measured).tolist() == [False, True, True]
    assert burst.why == "most requests miss their targets"


def test_a_window_shorter_than_a_burst_is_shown_whole() -> None:
    window = Window(10 * SECOND, 10 * SECOND + SECOND // 2)
    burst = worst_burst({"a": arrivals(10.2)}, window)
    assert (burst.start, burst.end) == (window.start, window.end)


def test_a_miss_is_marked_where_most_of_its_time_was_lost() -> None:
    rows = {
        "met": request(0, 0, 0.2, 0.3, 0.4, 0.5),
        "slow prefill": request(1, 1.5, 2.5, 2.6, 2.7, 2.8),
        "slow transfer": request(2, 2, 2.2, 4.0, 4.1, 4.2),
        "slow decode": request(3, 3, 3.2, 3.3, 3.4, 9.0),
        "failed in the queue": request(4, status="failed", end=5),
        "failed in transit": request(5, 5, 5.2, status="failed", end=6),
        "failed in decode, late before": request(6, 6, 8, 8.1, 8.2, status="failed", end=9),
        "rejected": request(7, status="rejected", decided=-1, end=7),
    }
    got = run(*rows.values())
    misses = split_misses(got, np.ones(len(rows), np.bool_))
    named = list(rows)
    assert [named[k] for k in np.flatnonzero(misses.before)] == [
        "slow prefill",
        "failed in the queue",
        "failed in decode, late before",
    ]
    assert [named[k] for k in np.flatnonzero(misses.after)] == ["slow transfer", "slow decode", "failed in transit"]


def test_four_policies_at_most_are_shown_with_the_baseline_the_best_and_the_worst() -> None:
    goodput = {"a": 0.5, "b": 0.9, "c": 0.6, "d": 0.1, "e": 0.7, "base": 0.4}
    assert choose_policies(goodput, "base") == ("a", "b", "d", "base")
    assert choose_policies({"a": 1.0, "b": 0.0}, "b") == ("a", "b")
    assert choose_policies(goodput, "not there", most=2) == ("b", "d")
