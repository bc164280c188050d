"""Each router of a cluster has policy state and a learner of its own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from disaggroute import policies, simulate
from disaggroute.envs.admission import Admission
from disaggroute.envs.cluster import Cluster
from disaggroute.policies.compiled_policy import initial_state

from . import scenes


def decode_of(policy: str, on: Cluster, requests: int = 60, **options: Any) -> list[int]:
    run = simulate(scenes.trace(requests, rate=1e6), on, policy, predictor="constant(50)", **options)
    return run.records["decode"].tolist()


def test_each_router_goes_round_by_itself() -> None:
    assert decode_of("round-robin", scenes.cluster(routers=2), 8) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_each_router_counts_only_what_it_sent() -> None:
    """All arrive before anything ends: each of two least-loaded routers fills the pool as if it were alone."""
    assert decode_of("least-loaded", scenes.cluster(routers=2), 8) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_each_router_draws_its_own_numbers() -> None:
    chosen = np.array(decode_of("random", scenes.cluster(routers=2), 200, seed=3))
    assert chosen[::2].tolist() != chosen[1::2].tolist()
    alone = np.array(decode_of("random", scenes.cluster(), 100, seed=3))
    assert chosen[::2].tolist() == alone.tolist()  # the first router draws as one alone would


def test_seeds_and_routers_start_different_streams() -> None:
    states = [tuple(row) for seed in range(20) for row in initial_state(seed).tolist()]
    assert len(set(states)) == len(states)


def test_what_one_router_learns_the_other_does_not_know() -> None:
    requests = scenes.trace(40)
    requests.arrival[:] = np.arange(40) * 20 * scenes.SECOND
    requests.slo[:] = 0
    requests.prompt[:] = 100
    requests.output[::2], requests.output[1::2] = 10, 500
    run = simulate(requests, scenes.cluster(routers=2), "round-robin", predictor="bucket")
    assert run.records["predicted"][:2].tolist() == [128, 128]
    assert set(run.records["predicted"][2::2].tolist()) == {10}
    assert set(run.records["predicted"][3::2].tolist()) == {500}


@pytest.mark.parametrize("dealing", ["round-robin", "random"])
def test_a_policy_in_python_is_told_which_router_asks(dealing: Any) -> None:
    asked: Counter[int] = Counter()

    class Asked(policies.Policy):
        name = "asked"

        def reset(self, seed: int) -> None:
            pass

        def route(self, admission: Admission) -> tuple[int, int]:
            asked[admission.router] += 1
            return 0, 0

    on = scenes.cluster(routers=3, dealing=dealing)
    run = simulate(scenes.trace(60), on, Asked(), seed=2)
    assert asked == Counter(run.records["router"].tolist()) and set(asked) == {0, 1, 2}
