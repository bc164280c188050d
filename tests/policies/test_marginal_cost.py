"""What the terms of the marginal cost do under the default weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from disaggroute.envs import router_constants
from disaggroute.envs.admission import Admission
from disaggroute.envs.router_constants import RouterConstants
from disaggroute.envs.simulator import simulate
from disaggroute.envs.trace import Trace
from disaggroute.policies import Policy, make

from . import scenes

NAIVE = 1 / 7.4
REQUESTS = 400


def decisions(
    name: str, *, of: Trace | None = None, constants: RouterConstants | None = None, **params: Any
) -> np.ndarray[Any, Any]:
    """(n, 2) pairs of a run on 2P4D near saturation."""
    on = scenes.cluster()
    result = simulate(
        of or scenes.trace(REQUESTS, rate=20),
        on,
        policy=make(name, **params),
        predictor="oracle",
        constants=constants or router_constants.from_cluster(on),
    )
    return np.stack([result.records["prefill"], result.records["decode"]], axis=1)


def share_changed(policy: Policy, other: Callable[[Admission], tuple[int, int]]) -> float:
    """Share of the admissions of one run at which `other` would have picked another pair."""
    simulated = scenes.simulator(scenes.cluster(), scenes.trace(REQUESTS, rate=20))
    changed = []
    while simulated.run():
        admission = simulated.admission()
        pair = policy.route(admission)
        changed.append(other(admission) != pair)
        simulated.send(*pair)
    return float(np.mean(changed))


def test_scaling_tau_as_in_the_study_changes_decisions_under_the_defaults() -> None:
    assert share_changed(make("marginal-cost"), make("simulator-naive").route) > 0.02


def test_flipping_the_class_of_all_requests_changes_decisions_under_the_defaults() -> None:
    of = scenes.trace(REQUESTS, rate=20)
    flipped = replace(of, slo=(1 - of.slo).astype(np.int8))
    changed = decisions("marginal-cost", of=of) != decisions("marginal-cost", of=flipped)
    assert changed.any(axis=1).mean() > 0.02


def test_flipping_the_class_of_one_request_changes_some_decisions_under_the_defaults() -> None:
    # σ of the classes exchanged: what the policy would do if this request alone had the other class.
    swapped = make("marginal-cost", sigma_tight=1, sigma_loose=2)
    assert share_changed(make("marginal-cost"), swapped.route) > 0.02


def test_without_a_price_of_counts_neither_tau_nor_the_class_changes_anything() -> None:
    policy = make("marginal-cost", w_q=0)
    assert share_changed(policy, make("marginal-cost", w_q=0, sigma_tight=1, sigma_loose=2).route) == 0
    assert share_changed(policy, make("simulator-naive", w_q=0).route) == 0


def test_simulator_naive_is_marginal_cost_with_a_tau_that_is_7_4_times_too_small() -> None:
    naive = decisions("simulator-naive")
    assert (naive == decisions("marginal-cost", tau_scale=NAIVE)).all()
    exact = router_constants.from_cluster(scenes.cluster())
    wrong = exact.overridden(
        tau_decode=exact.tau_decode * NAIVE,
        tau_decode_single=exact.tau_decode_single * NAIVE,
        tau_prefill=exact.tau_prefill * NAIVE,
    )
    assert (naive == decisions("marginal-cost", constants=wrong)).all()


def test_a_vanishing_tau_leaves_nothing_but_counting() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace(REQUESTS, rate=20))
    policy = make("marginal-cost", tau_scale=1e-9)
    while simulated.run():
        admission = simulated.admission()
        prefill, decode = policy.route(admission)
        assert admission.prefill[prefill, 0] == admission.prefill[:, 0].min()
        assert admission.decode[decode, 0] == admission.decode[:, 0].min()
        simulated.send(prefill, decode)


def test_a_guard_of_one_never_lets_a_queue_grow_far_beyond_the_mean() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace(REQUESTS, rate=40))
    policy = make("marginal-cost", guard=1, w_q=0)
    while simulated.run():
        admission = simulated.admission()
        _, decode = policy.route(admission)
        counts = admission.decode[:, 0]
        assert counts[decode] <= 1 + counts.mean()
        simulated.send(*policy.route(admission))


@pytest.mark.parametrize(
    "changed",
    [
        {"rho": 50},
        {"tau": "single", "w_b": 0.2},
        {"backlog": "committed"},
        {"w_s": 0},
        {"w_b": 0},
        {"sample": 2},
    ],
    ids=str,
)
def test_every_option_changes_some_decisions(changed: dict[str, Any]) -> None:
    assert (decisions("marginal-cost", **changed) != decisions("marginal-cost")).any()
