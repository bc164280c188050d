"""What a candidate is worth: goodput, and what guards take off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.policies import registry
from disaggroute.training.evaluation import summary_of
from disaggroute.training.learning.fitness import Guards, guarded, measure_of, score

NAN = math.nan


def test_measures_are_those_of_the_summary() -> None:
    scenario = Scenario.make(workload="mixed-bursty-a40", topology="1P2D", rate=12, duration_s=40, warmup_s=5)
    setting = Setting.of(scenario)
    prepared = setting.prepare(0)
    records = setting.simulate(prepared, registry.make("least-loaded"), 0).records
    summary = summary_of(records, prepared, setting)
    goodput, ttft, slowdown, *groups = guarded(records, prepared)
    shares = [*summary.by_class.values(), *summary.by_family.values()]
    assert goodput == summary.goodput
    assert groups == pytest.approx([share.goodput for share in shares])
    # The summary interpolates between the two largest values.
    assert (ttft, slowdown) == pytest.approx((summary.ttft.p999, summary.slowdown.p999), rel=0.1)


def test_without_guards_goodput_alone_is_measured_and_scored() -> None:
    assert measure_of(Guards()) is not guarded
    assert measure_of(Guards(tail=0.1)) is guarded
    assert score(np.array([[[0.8], [0.6]], [[0.9], [1.0]]]), Guards()).tolist() == pytest.approx([0.7, 0.95])


def numbers(goodput: float, ttft: float, slowdown: float, *groups: float) -> list[list[float]]:
    return [[goodput, ttft, slowdown, *groups]]


def test_a_class_that_loses_more_than_is_allowed_costs() -> None:
    table = np.array([numbers(0.8, 1, 1, 0.9, 0.7), numbers(0.9, 1, 1, 0.88, 0.99), numbers(0.9, 1, 1, 0.6, 0.99)])
    assert score(table, Guards(group=0.5, allowed_loss=0.05)).tolist() == pytest.approx([0.8, 0.9, 0.9 - 0.5 * 0.25])


def test_a_class_without_requests_on_a_trace_says_nothing_there() -> None:
    base = [[0.8, 1, 1, 0.9, NAN], [0.8, 1, 1, 0.9, 0.5]]
    other = [[0.8, 1, 1, 0.9, NAN], [0.8, 1, 1, 0.9, 0.2]]
    never = [[0.8, 1, 1, 0.9, NAN], [0.8, 1, 1, 0.9, NAN]]
    assert score(np.array([base, other]), Guards(group=1, allowed_loss=0)).tolist() == pytest.approx([0.8, 0.5])
    assert score(np.array([never, never]), Guards(group=1, allowed_loss=0)).tolist() == pytest.approx([0.8, 0.8])


def test_a_longer_tail_than_is_allowed_costs_its_logarithm() -> None:
    table = np.array([numbers(0.8, 2, 5, 1), numbers(0.8, 3, 5, 1), numbers(0.8, 6, 20, 1)])
    cost = 0.1 * (math.log(3 / 1.5) + math.log(4 / 1.5))
    assert score(table, Guards(tail=0.1, allowed_tail=1.5)).tolist() == pytest.approx([0.8, 0.8, 0.8 - cost])
