"""Least projected TTFT and least projected TPOT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disaggroute.envs import features as F
from disaggroute.envs import router_constants
from disaggroute.envs.cluster import Cluster
from disaggroute.envs.feature_arrays import FeatureArrays
from disaggroute.envs.router_constants import RouterConstants
from disaggroute.envs.simulator import Simulator, simulate
from disaggroute.policies import make, parse
from disaggroute.policies.registry import policy_class

from . import scenes


def uneven(on: Cluster) -> RouterConstants:
    """Constants that differ from instance to instance."""
    exact = router_constants.from_cluster(on)
    factor = 1 + 0.3 * np.arange(len(exact))
    names = ("tau_prefill", "base_prefill", "per_token", "per_token_sq", "base_decode", "per_sequence", "per_context")
    return exact.overridden(**{name: getattr(exact, name) * factor for name in names})


@pytest.mark.parametrize("believed", [router_constants.from_cluster, uneven])
def test_both_stages_take_the_least_of_the_features(believed: Callable[[Cluster], RouterConstants]) -> None:
    on, of = scenes.cluster(), scenes.trace(200, rate=25)
    constants = believed(on)
    arrays = FeatureArrays.of_cluster(on, constants)
    policy = parse("least-ttft(decode=min-tpot)")
    simulated = Simulator(on, of, predicted=of.output, constants=constants)
    prefill_ratio = [c.name for c in F.PREFILL].index("prefill_ratio")
    projected_step = [c.name for c in F.DECODE].index("projected_step")
    while simulated.run():
        admission = simulated.admission()
        seen = arrays.of_admission(admission)
        pair = policy.route(admission)
        for pool, column, chosen in (("prefill", prefill_ratio, pair[0]), ("decode", projected_step, pair[1])):
            costs = seen[pool][:, column]
            assert costs[chosen] == costs.min()
        simulated.send(*pair)


def test_the_stage_that_is_not_named_is_routed_as_its_parameter_says() -> None:
    on, of = scenes.cluster(), scenes.trace(200, rate=25)
    constants = uneven(on)

    def routed(text: str) -> np.ndarray[Any, Any]:
        return simulate(of, on, policy=parse(text), predictor="oracle", constants=constants).records

    turn = np.arange(200)
    assert (routed("least-ttft(decode=round-robin)")["decode"] == turn % 4).all()
    assert (routed("min-tpot(prefill=round-robin)")["prefill"] == turn % 2).all()
    both = routed("least-ttft(decode=min-tpot)")
    assert (both[["prefill", "decode"]] == routed("min-tpot(prefill=least-ttft)")[["prefill", "decode"]]).all()
    assert (routed("least-ttft")["decode"] != both["decode"]).any()
    assert (routed("min-tpot")["prefill"] != both["prefill"]).any()


def test_an_idle_pool_is_filled_from_the_lowest_index() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace())
    assert simulated.run()
    for text in ("least-ttft(decode=min-tpot)", "min-tpot"):
        assert parse(text).route(simulated.admission()) == (0, 0)


def test_growth_counts_the_output_that_is_still_to_come() -> None:
    on, of = scenes.cluster(), scenes.trace(300, rate=25)
    constants = router_constants.from_cluster(on)
    now, later = (
        simulate(of, on, policy=make("min-tpot", growth=growth), predictor="oracle", constants=constants).records
        for growth in (0, 1)
    )
    assert (now["decode"] != later["decode"]).any()


def test_only_the_growth_is_tuned() -> None:
    assert [d.label for d in policy_class("min-tpot").search_space(2, 4)] == ["growth"]
    assert policy_class("least-ttft").search_space(2, 4) == ()
