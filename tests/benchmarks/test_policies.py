"""Decisions of learned policies are measured in episodes and through the object in Python."""

from __future__ import annotations

import pytest

from disaggroute import simulate
from disaggroute.benchmarks.goals import GOALS
from disaggroute.benchmarks.policies import TOPOLOGIES, learned, measure
from disaggroute.policies.network import Network

from ..policies import scenes


def test_each_learned_policy_has_a_time_in_episodes_and_one_in_python() -> None:
    results = measure("2P4D", 13.97, requests=400, routes=50, repeats=2)
    names = [f"policies/{name}/2P4D/{way}" for name in ("linear", "network") for way in ("episode", "route")]
    assert [(result.name, result.unit, result.repeats) for result in results] == [(name, "µs", 2) for name in names]
    assert all(result.min <= result.value <= result.max for result in results)
    assert all(result.value > 0 for result in results if result.name.endswith("route"))


def test_the_network_that_is_measured_works_as_hard_as_any_and_decides_nearly_as_linear() -> None:
    policies = learned()
    network = policies["network"]
    assert isinstance(network, Network) and (network.vector_of_weights != 0).all()
    records = {
        name: simulate(scenes.trace(200), scenes.cluster(), policy, predictor="oracle").records
        for name, policy in policies.items()
    }
    assert (records["network"]["prefill"] == records["linear"]["prefill"]).mean() > 0.9


def test_the_network_has_goals_at_both_sizes() -> None:
    for topology in TOPOLOGIES:
        for way in ("episode", "route"):
            assert f"policies/network/{topology}/{way}" in GOALS


@pytest.mark.parametrize("field", ["requests", "routes", "repeats"])
def test_a_count_below_one_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0; it must be at least 1"):
        measure("2P4D", 13.97, **{field: 0})  # type: ignore[arg-type]
