"""The compiled loop, the Python object and the plain formulas decide alike, and so does all that follows."""

from __future__ import annotations

from typing import Any

import pytest

from disaggroute.envs import router_constants
from disaggroute.envs.cluster import Cluster
from disaggroute.envs.router_constants import RouterConstants
from disaggroute.envs.simulator import Simulator, simulate
from disaggroute.envs.simulator.reference import run_reference
from disaggroute.envs.simulator.simulator import resolve_predictor
from disaggroute.policies import registry

from ..differential.cases import Case, random_case
from ..differential.comparison import first_difference
from .networks import network_text
from .plain import Seen
from .plain_twins import plain_policy

POLICIES = (
    "round-robin",
    "random",
    "least-loaded",
    "power-of-two",
    "length-threshold",
    "length-threshold(threshold=7.5)",
    "marginal-cost",
    "marginal-cost(w_q=0, sigma_tight=5)",
    "marginal-cost(w_b=0.3, w_s=1.7, w_q=0.01, rho=4, sigma_loose=0.5)",
    "marginal-cost(tau=single, backlog=committed)",
    "marginal-cost(sample=2, rho=0)",
    "marginal-cost(guard=1)",
    "marginal-cost(sample=2, guard=1.2, backlog=committed, w_q=0)",
    "simulator-naive",
    "least-ttft",
    "least-ttft(decode=round-robin)",
    "least-ttft(decode=min-tpot)",
    "min-tpot",
    "min-tpot(prefill=round-robin, growth=0.5)",
    "min-tpot(prefill=least-ttft)",
    "best-fit",
    "best-fit(ttft_slack=8, tpot_slack=10, limit=2, give_up=12)",
    "best-fit(ttft_slack=4, tpot_slack=2.6, limit=0.7)",
    "size-interval",
    "size-interval(prefill_low=4, prefill_high=60, prefill_up=3, prefill_down=20, decode_low=3, decode_high=20)",
    "size-interval(prefill_low=4, prefill_high=90, prefill_order=descending, prefill_loose=2, decode_up=0.02, "
    "decode_down=0.1, decode_low=2, decode_high=12, decode_loose=0.5, decode_order=descending)",
    "card",
    "card(prefill_cut=20, prefill_threshold=15, decode_cut=8, decode_band=2, decode_threshold=20)",
    "linear",
    'linear(prefill={"queued": -1.5, "prompt*index": 300, "since_last*polled_usage": 2, "tight*queued_work": 9, '
    '"predicted*queued_strict": -40, "polled_waiting": 1, "own_prefill": 2}, decode={"remaining_work": 50, '
    '"index": -0.1, "predicted*index": 20, "tight*context_ratio": 3, "polled_running": -4, "kv_capacity": 100, '
    '"pending": 3, "strict": 2, "pressure": 0.3, "committed_work": -20, "ttft_target*poll_age": 5}, '
    'mixed={"in_flight": 40, "queued_ratio": 3, "prompt*index": -90, "tight*polled_usage": 7, "step_ratio": 1, '
    '"tpot_target*prefill_ratio": 0.1, "role": 5, "available": 2})',
    "card(prefill_cut=30, prefill_long=0, prefill_threshold=60, decode_cut=6, decode_long=0.8, decode_threshold=9)",
    "network",
    network_text([16], 0),
    network_text([5], 1),
    network_text([40], 2),
    network_text([16, 8], 3),
    network_text([7, 20], 4),
)
CASES = 16
LONG = 400


def short(text: str) -> str:
    return text if len(text) < 300 else text[:300] + "…"


def beliefs(cluster: Cluster) -> RouterConstants:
    """Constants whose τ is about 20 ms, so that no term of a cost drowns in integer-sized step times."""
    exact = router_constants.from_cluster(cluster)
    return exact.scaled(0.02 / float(exact.tau_decode.mean()))


def check(text: str, case: Case, seed: int) -> None:
    """Runs the three and compares records, views, choices and probabilities."""
    policy = registry.parse(text)
    constants = beliefs(case.cluster)
    block_size = case.cluster.instances[0].block_size
    plain = plain_policy(policy.name, policy.params, seed, constants, block_size)
    picks: list[tuple[int, int, float]] = []

    def route(admission: Any) -> tuple[int, int]:
        views = admission.prefill_view, admission.decode_view
        picks.append(plain.choose(Seen.of(admission, *views, case.trace, case.cluster.aggregated)))
        return picks[-1][:2]

    expected = run_reference(
        case.trace, case.cluster, route=route, predicted=case.predicted, observe=True, seed=seed
    )
    shared: dict[str, Any] = {"policy": policy, "predictor": case.predicted, "seed": seed}
    shared["constants"] = constants
    by_object = simulate(case.trace, case.cluster, observe=True, **shared)
    difference = first_difference(expected, by_object)
    assert difference is None, f"{text} as an object, {case.label}: {difference}"
    compiled = simulate(case.trace, case.cluster, log_decisions=True, **shared)
    assert (compiled.records == expected.records).all(), f"{text} compiled, {case.label}"
    assert compiled.decisions["request"].tolist() == expected.decisions.tolist()
    assert compiled.decisions["probability"] == pytest.approx([chance for *_, chance in picks], rel=1e-12)
    choices = choices_of(policy, case, seed, constants)
    assert [choice[:2] for choice in choices] == [pick[:2] for pick in picks], case.label
    assert [chance for *_, chance in choices] == compiled.decisions["probability"].tolist()


def choices_of(
    policy: Any, case: Case, seed: int, constants: RouterConstants
) -> list[tuple[int, int, float]]:
    """All decisions of the object, with their probabilities."""
    predicted, learns = resolve_predictor(case.predicted, case.trace, seed)  # type: ignore[arg-type]
    simulator = Simulator(case.cluster, case.trace, predicted=predicted, learns=learns, seed=seed, constants=constants)
    policy.reset(seed)
    made = []
    while simulator.run():
        made.append(policy.choose(simulator.admission()))
        simulator.send(*made[-1])
    return [tuple(choice) for choice in made]


@pytest.mark.parametrize("text", POLICIES, ids=short)
def test_all_three_decide_alike_on_random_clusters(text: str) -> None:
    for seed in range(CASES):
        check(text, random_case(seed + 100 * POLICIES.index(text)), seed)


@pytest.mark.parametrize("text", POLICIES, ids=short)
def test_all_three_decide_alike_on_aggregated_clusters(text: str) -> None:
    for seed in range(CASES // 4):
        check(text, random_case(seed + 100 * POLICIES.index(text), aggregated=True), seed)


@pytest.mark.parametrize("text", POLICIES, ids=short)
def test_all_three_decide_alike_while_instances_fail_and_drain(text: str) -> None:
    for seed in range(CASES // 2):
        check(text, random_case(seed + 100 * POLICIES.index(text), failures=True, requests=40), seed)


@pytest.mark.long
@pytest.mark.parametrize("text", POLICIES, ids=short)
def test_all_three_decide_alike_on_many_more_cases(text: str) -> None:
    for seed in range(CASES, LONG):
        check(text, random_case(seed + LONG * POLICIES.index(text)), seed)


def test_the_cases_have_several_routers_and_pools_in_which_not_all_may_be_assigned() -> None:
    cases = [random_case(seed + 100 * k, failures=True) for k in range(len(POLICIES)) for seed in range(8)]
    assert any(case.cluster.routers > 1 for case in cases)
    drains = [event for case in cases for event in case.cluster.events if event.action == "drain"]
    assert len(drains) > 20
