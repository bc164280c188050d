"""Decisions of the live router are measured with requests in flight, policy by policy."""

from __future__ import annotations

import pytest

from disaggroute.benchmarks import decision
from disaggroute.benchmarks.goals import COMPILED, GOALS
from disaggroute.policies import registry
from disaggroute.policies.compiled_policy import CompiledPolicy


def test_decisions_are_measured_with_requests_in_flight() -> None:
    results = decision.measure(topology="2P4D", policies=["round-robin", "marginal-cost"], decisions=20, repeats=2)
    names = [f"proxy/decision/2P4D/{policy}" for policy in ("round-robin", "marginal-cost")]
    assert [result.name for result in results] == names
    for result in results:
        assert result.unit == "µs" and result.repeats == 2 and 0 < result.min <= result.value <= result.max
        assert result.details == {"in_flight": decision.IN_FLIGHT, "fallbacks": 0}


def test_every_compiled_policy_is_measured_and_has_a_goal() -> None:
    compiled = {name for name in registry.names() if isinstance(registry.make(name), CompiledPolicy)}
    assert set(COMPILED) == compiled
    assert all(f"proxy/decision/{decision.TOPOLOGY}/{policy}" in GOALS for policy in compiled)


def test_counts_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="decisions is 0; it must be at least 1"):
        decision.measure(decisions=0)
