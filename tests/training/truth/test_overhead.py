"""The overhead of the client's way: found where it was planted, and told as unknown where it cannot be measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs.records import RECORD
from disaggroute.envs.scenario import Scenario
from disaggroute.training.truth.goodput import goodputs
from disaggroute.training.truth.overhead import FEWEST_BUSY, FEWEST_IDLE, Overhead, Part, alone_on
from disaggroute.training.truth.truth import compare_with_simulator

from .conftest import Make
from .live_folder import MS, Way, made_live, simulated


def test_what_the_way_adds_is_found_in_both_parts_and_explains_the_whole_error(live: Make) -> None:
    truth = compare_with_simulator(live(Way(before=1.0, leg=0.5, after=1.5)))
    prefill, decode = truth.overhead.parts
    assert prefill.alone and prefill.requests > FEWEST_IDLE and prefill.value == 1.5 * MS
    assert decode.value == decode.low == decode.high == 1.5 * MS
    assert truth.overhead.known and truth.overhead.total == 3 * MS
    for line in truth.errors:
        late = line.quantity.overhead and not line.overhead
        assert line.errors.absolute == pytest.approx((3e-3 if late else 0.0,) * 3, abs=1e-12)


def test_the_overhead_is_a_constant_and_nothing_else_is_fitted(live: Make) -> None:
    def slower(columns: dict[str, np.ndarray]) -> None:
        span = columns["last_token_ps"] - columns["first_token_ps"]
        columns["last_token_ps"] = columns["first_token_ps"] + span * 11 // 10

    truth = compare_with_simulator(live(Way(after=2.0), slower))
    tpot = next(line for line in truth.errors if line.quantity.name == "tpot")
    assert tpot.errors.bias == pytest.approx(1 / 1.1 - 1, abs=1e-6)
    assert truth.overhead.total == 2 * MS


def test_goodput_is_told_with_the_overhead_and_without(live: Make) -> None:
    truth = compare_with_simulator(live(Way(after=120.0)))
    assert truth.overhead.total == 120 * MS
    for found, run in zip(truth.goodputs, truth.runs, strict=True):
        assert found.measured == found.with_ < found.without
        assert goodputs(run, 0).with_ == found.without


def test_on_instances_that_are_never_empty_the_mean_stands_for_the_median() -> None:
    part = Part("to the first token", FEWEST_BUSY, False, MS, 0, 2 * MS)
    assert part.known and "100 requests on busy instances" in part.text()
    assert not Part("to the first token", FEWEST_BUSY - 1, False, MS, 0, MS).known


def test_an_overhead_that_rests_on_too_few_requests_is_not_known_and_not_added() -> None:
    overhead = Overhead((Part("a", FEWEST_IDLE - 1, True, MS, MS, MS), Part("b", 500, True, MS, MS, MS)))
    assert not overhead.known and overhead.total == 0
    assert overhead.text().startswith("Not known: 10 requests with an instance to themselves or 100 others")


stays = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 6), st.integers(0, 6)), max_size=12)


@given(stays)
def test_a_request_is_alone_when_no_other_stays_on_its_instance_meanwhile(some: list[tuple[int, ...]]) -> None:
    records = np.zeros(len(some), RECORD)
    records["decode"] = [instance for instance, *_ in some]
    begin = np.array([start for _, start, *_ in some], np.int64)
    end = begin + np.array([length for *_, length, _ in some], np.int64)
    leaves = end + np.array([more for *_, more in some], np.int64)
    expected = [
        not any(
            j != k and some[j][0] == some[k][0] and begin[j] < end[k] and leaves[j] > begin[k]
            for j in range(len(some))
        )
        for k in range(len(some))
    ]
    assert alone_on(records, "decode", begin, end, leaves).tolist() == expected


def test_mixed_instances_have_one_part_of_the_way(tmp_path: Path) -> None:
    def mixed(columns: dict[str, np.ndarray]) -> None:
        columns["prefill_end_ps"][:] = -1  # Nobody can see it there.

    scenario = Scenario.make(workload="document", topology="2M", rate=3, duration_s=40, warmup_s=2)
    folder = simulated(tmp_path / "mixed", scenario, ("round-robin",), range(2, 3))
    truth = compare_with_simulator(made_live(folder, Way(1.0, 0.0, 2.0), mixed))
    (part,) = truth.overhead.parts
    assert part.name == "to the first token" and part.value == 3 * MS and truth.overhead.known
    for line in truth.shown():
        assert line.errors.absolute == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)


def test_on_decode_instances_that_are_never_empty_the_mean_over_all_is_taken(tmp_path: Path) -> None:
    scenario = Scenario.make(workload="chat", topology="2P2D", rate=14, duration_s=20, warmup_s=5)
    folder = simulated(tmp_path / "busy", scenario, ("round-robin",), range(1))

    def steps(columns: dict[str, np.ndarray]) -> None:
        # One request in five joins a step of 15 ms later, and some are held up by something else for a second.
        place = np.arange(len(columns["arrival_ps"]))
        more = np.where(place % 5 == 0, 15 * MS, 0) + np.where(place % 50 == 1, 1000 * MS, 0)
        columns["first_token_ps"] += more
        columns["last_token_ps"] += more

    prefill, decode = compare_with_simulator(made_live(folder, Way(), steps)).overhead.parts
    assert prefill.alone and prefill.value == 0
    assert not decode.alone and decode.requests > FEWEST_BUSY
    assert decode.value == pytest.approx(3 * MS, rel=0.15)
