"""The probability that a policy states for its choice."""

from __future__ import annotations

from collections import Counter

import pytest

from disaggroute.envs.cluster import Cluster
from disaggroute.policies import make, parse

from . import scenes

DRAWS = 1500
CLUSTERS = {
    "disaggregated": scenes.cluster("2P3D"),
    "aggregated": scenes.cluster("4M"),
    "some draining": scenes.drained("3P4D", 1, 4),
    "one open in a pool": scenes.drained("2P3D", 0, 3, 4),
}


@pytest.mark.parametrize("kind", CLUSTERS)
@pytest.mark.parametrize("text", ["random", "power-of-two", "marginal-cost(sample=2)"])
def test_the_probabilities_of_all_outcomes_sum_to_one_and_come_true(text: str, kind: str) -> None:
    on: Cluster = CLUSTERS[kind]
    simulated = scenes.simulator(on, scenes.trace())
    admission = scenes.admission_after(simulated, make("round-robin"), 20)
    policy = parse(text)
    stated: dict[tuple[int, int], float] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for seed in range(DRAWS):
        policy.reset(seed)
        prefill, decode, chance = policy.choose(admission)
        counts[prefill, decode] += 1
        assert stated.setdefault((prefill, decode), chance) == chance
    assert sum(stated.values()) == pytest.approx(1)
    for pair, chance in stated.items():
        assert counts[pair] / DRAWS == pytest.approx(chance, abs=0.05)


@pytest.mark.parametrize("text", ["round-robin", "least-loaded", "length-threshold", "marginal-cost"])
def test_a_policy_that_does_not_draw_is_certain(text: str) -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace())
    admission = scenes.admission_after(simulated, make("random"), 10)
    assert parse(text).choose(admission).probability == 1
