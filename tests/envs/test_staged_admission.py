"""A stage shows recorded admissions to policies so that they decide as they did."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from disaggroute.envs.feature_arrays import FeatureArrays
from disaggroute.envs.router_constants import from_cluster
from disaggroute.envs.simulator import Simulator
from disaggroute.envs.staged_admission import Stage
from disaggroute.policies import parse

from ..policies import scenes

POLICIES = (
    "round-robin",
    "random",
    "least-loaded",
    "power-of-two",
    "length-threshold",
    "least-ttft(decode=min-tpot)",
    "min-tpot",
    "best-fit",
    "size-interval",
    "card",
    "marginal-cost(sample=2, guard=1.5)",
    "marginal-cost",
    "linear@mixed-bursty",
)


@pytest.mark.parametrize("topology", ["2P4D", "9P11D", "5M"])
def test_every_policy_decides_as_it_did(topology: str) -> None:
    on, of = scenes.cluster(topology, routers=3), scenes.trace(250, rate=60)
    simulated = Simulator(on, of, predicted=of.output, seed=5, constants=from_cluster(on))
    stage = Stage(on, from_cluster(on))
    policies = [parse(text) for text in POLICIES]
    last: dict[int, int] = {}
    while simulated.run():
        admission = simulated.admission()
        twins = copy.deepcopy(policies)
        choices = [policy.choose(admission) for policy in policies]
        bare = replace(admission, constants=None, address=0, owner=None)
        shown = stage.show(bare, last.get(admission.router, -1))
        assert [twin.choose(shown) for twin in twins] == choices
        last[admission.router] = admission.now
        simulated.send(*choices[-1])


def test_what_is_changed_is_what_policies_see() -> None:
    on = scenes.cluster()
    stage = Stage(on, from_cluster(on))
    simulated = scenes.simulator(on, scenes.trace())
    assert simulated.run()
    admission = simulated.admission()
    decode = admission.decode.copy()
    decode[:, 0] = (9, 9, 2, 9)
    prefill = admission.prefill.copy()
    prefill[0, -1] = 0
    shown = stage.show(replace(admission, decode=decode, prefill=prefill))
    assert parse("least-loaded").route(shown) == (1, 2)
    by_class = parse('linear(decode={"tight*index": 1, "index": -0.5})')
    for slo, expected in ((0, 0), (1, 3)):
        assert by_class.route(stage.show(replace(admission, slo=slo)))[1] == expected
    arrays = FeatureArrays.of_cluster(on)
    assert (arrays.of_admission(shown)["decode"] == arrays.of_admission(replace(shown, address=0))["decode"]).all()


def test_views_of_another_cluster_are_refused() -> None:
    on = scenes.cluster()
    simulated = scenes.simulator(on, scenes.trace())
    assert simulated.run()
    other = scenes.cluster("1P2D")
    with pytest.raises(ValueError, match=r"views have 2 and 4 rows; .* has 1 and 2"):
        Stage(other, from_cluster(other)).show(simulated.admission())
