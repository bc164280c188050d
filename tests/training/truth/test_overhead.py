"""The overhead of the client's way: found where it was planted, and told as unknown where it cannot be measured."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.training.truth.goodput import goodputs
from disaggroute.training.truth.overhead import FEWEST_BUSY, FEWEST_IDLE, Overhead, Part
from disaggroute.training.truth.truth import compare_with_simulator

from .conftest import Make
from .live_folder import MS, Way


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
