"""`disaggroute.simulate`."""

from __future__ import annotations

from typing import Any

import pytest

import disaggroute
from disaggroute.envs import router_constants, simulator
from disaggroute.policies import make
from disaggroute.policies.run import simulate

from . import scenes


def test_the_package_offers_it_at_the_top() -> None:
    assert disaggroute.simulate is simulate


def test_a_name_and_a_policy_give_the_same_run() -> None:
    on, of = scenes.cluster(), scenes.trace()
    by_name = simulate(of, on, "marginal-cost(w_q=0.2)", seed=1).records
    assert (by_name == simulate(of, on, make("marginal-cost", w_q=0.2), seed=1).records).all()


def test_the_router_believes_what_a_perfect_calibration_gives_unless_told_otherwise() -> None:
    on, of = scenes.cluster(), scenes.trace(300)
    exact = router_constants.from_cluster(on)
    records = simulate(of, on, "marginal-cost").records
    assert (records == simulate(of, on, "marginal-cost", constants=exact).records).all()
    assert (records != simulate(of, on, "marginal-cost", constants=exact.scaled(0.01)).records).any()


def test_options_reach_the_simulator() -> None:
    on, of = scenes.cluster(), scenes.trace()
    seen = simulate(of, on, "random", predictor="oracle", seed=2, observe=True)
    below = simulator.simulate(of, on, policy=make("random"), predictor="oracle", seed=2, observe=True)
    assert (seen.records == below.records).all()
    assert (seen.decode_views == below.decode_views).all()
    assert len(simulate(of, on, "random", log_decisions=True).decisions) == len(of)


def test_a_recorded_routing_is_replayed() -> None:
    on, of = scenes.cluster(), scenes.trace()
    routed = simulate(of, on, "random", seed=3).records
    again = simulate(of, on, assignment=(routed["prefill"], routed["decode"])).records
    assert (routed == again).all()


@pytest.mark.parametrize(("policy", "assignment"), [(None, None), ("random", ([0], [0]))])
def test_a_run_needs_either_a_policy_or_an_assignment(policy: str | None, assignment: Any) -> None:
    with pytest.raises(ValueError, match=r"policy and assignment are both (given|missing); exactly one is needed"):
        simulate(scenes.trace(1), scenes.cluster(), policy, assignment=assignment)


def test_an_unknown_policy_is_answered_by_a_sentence() -> None:
    with pytest.raises(ValueError, match="unknown policy 'least-loded'; nearest: least-loaded"):
        simulate(scenes.trace(), scenes.cluster(), "least-loded")
