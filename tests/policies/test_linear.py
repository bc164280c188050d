"""Linear: terms, weights, what they do, and what is said of wrong ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from disaggroute.envs import features as F
from disaggroute.envs import router_constants
from disaggroute.envs.feature_arrays import FeatureArrays
from disaggroute.envs.simulator import lanes, layout, simulate
from disaggroute.policies import make, parse
from disaggroute.policies.registry import policy_class
from disaggroute.policies.search_space import params_at

from ..differential.cases import random_case
from . import scenes
from .test_compiled_equals_plain import check

OF = scenes.trace(300, rate=25)


def routed(text: str, topology: str = "2P4D") -> np.ndarray[Any, Any]:
    """Records of a run under an oracle."""
    on = scenes.cluster(topology)
    constants = router_constants.from_cluster(on)
    return simulate(OF, on, policy=parse(text), predictor="oracle", constants=constants).records


def columns_of(records: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    return list(zip(records["prefill"].tolist(), records["decode"].tolist(), strict=True))


def test_counting_weights_are_least_loaded() -> None:
    assert columns_of(routed('linear(prefill={"queued": 1}, decode={"in_flight": 1})')) == columns_of(
        routed("least-loaded")
    )
    assert columns_of(routed('linear(mixed={"in_flight": 0.5})', "4M")) == columns_of(routed("least-loaded", "4M"))


def test_a_product_with_the_index_gives_sizes_and_classes_instances_of_their_own() -> None:
    records = routed('linear(prefill={"index": 0.3, "prompt*index": -1}, decode={"tight*index": 1, "index": -0.5})')
    assert (records["prefill"] == (OF.prompt > 300)).all()
    assert (records["decode"] == np.where(OF.slo == 0, 0, 3)).all()


def test_no_weights_leave_the_first_instance_that_may_be_assigned() -> None:
    on = scenes.drained("2P4D", 0, 2)
    policy = parse("linear(prefill={}, decode={})")
    simulated = scenes.simulator(on, OF)
    assert simulated.run()
    assert policy.route(simulated.admission()) == (1, 1)


def test_the_cost_is_the_weighted_sum_of_the_scaled_features() -> None:
    on = scenes.cluster()
    arrays = FeatureArrays.of_cluster(on)
    prefill = {"queued_work": 1.0, "polled_waiting": -2.0, "tight*queued": 3.0}
    decode = {"pressure": 2.0, "predicted*in_flight": 0.5, "poll_age": 9.0}
    policy = make("linear", prefill=prefill, decode=decode)
    simulated = scenes.simulator(on, OF)
    while simulated.run():
        admission = simulated.admission()
        seen = arrays.of_admission(admission)
        pair = policy.route(admission)
        named = {c.name: x for c, x in zip(F.REQUEST, seen["request"], strict=True)}
        for role, columns, weights, picked in (
            ("prefill", F.PREFILL, prefill, pair[0]),
            ("decode", F.DECODE, decode, pair[1]),
        ):
            names = [column.name for column in columns]
            costs = np.zeros(len(seen[role]))
            for term, weight in weights.items():
                *factor, column = term.split("*")
                scale = float(named[factor[0]]) if factor else 1.0
                costs += weight * scale * seen[role][:, names.index(column)].astype(np.float64)
            assert costs[picked] == pytest.approx(costs.min(), abs=1e-9)
        simulated.send(*pair)


@pytest.mark.parametrize("seed", range(36))
def test_few_random_terms_decide_as_the_plain_formula_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = {}
    for stage, columns in (("prefill", F.PREFILL), ("decode", F.DECODE), ("mixed", F.MIXED)):
        terms = {}
        for _ in range(2):
            column = columns[rng.integers(len(columns) - 1)]
            factor = [None, *F.REQUEST][rng.integers(1 + len(F.REQUEST))]
            # The lengths, times and counts of the cases are far below usual ones.
            weight = float(rng.normal() * 1e3)
            terms[column.name if factor is None else f"{factor.name}*{column.name}"] = weight
        given[stage] = terms
    inside = ", ".join(f"{stage}={json.dumps(terms)}" for stage, terms in given.items())
    check(f"linear({inside})", random_case(seed + 4000, aggregated=seed % 3 == 0), seed)


@pytest.mark.parametrize("away", [-1, 0, 1])
def test_features_are_rounded_to_float32_before_they_are_weighed(away: int) -> None:
    simulated = scenes.simulator(scenes.cluster(), OF)
    assert simulated.run()
    admission = simulated.admission()
    rounded = np.float32(admission.prompt / 1000)
    assert float(rounded) != admission.prompt / 1000
    constant = float(np.nextafter(rounded, np.float32(away * np.inf)) if away else rounded)
    found = [
        make("linear", prefill={"prompt*index": -sign, "index": sign * constant}, decode={}).route(admission)[0]
        for sign in (1, -1)
    ]
    assert found == {-1: [1, 0], 0: [0, 0], 1: [0, 1]}[away]  # at 0 both instances cost the same


def test_the_defaults_compare_the_projected_latencies() -> None:
    same = routed("linear")["prefill"] == routed("least-ttft(decode=min-tpot)")["prefill"]
    assert same.mean() > 0.95  # features are rounded to float32, so near ties may differ


def test_terms_are_written_in_one_way() -> None:
    policy = make("linear", prefill={" prompt * index ": 2}, decode={}, mixed={})
    assert policy.params["prefill"] == {"prompt*index": 2}
    assert policy.hash == make("linear", prefill={"prompt*index": 2}, decode={}, mixed={}).hash
    text = 'linear(prefill={"prompt*index": 2.0, "queued": -1.0})'
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        (
            {"prefill": {"qeued": 1}},
            "prefill: term 'qeued': unknown feature of a prefill instance 'qeued'; nearest: queued",
        ),
        (
            {"decode": {"queued": 1}},
            "decode: term 'queued': unknown feature of a decode instance 'queued'; allowed: available, ",
        ),
        (
            {"mixed": {"promt*index": 1}},
            "mixed: term 'promt*index': unknown feature of a request 'promt'; nearest: prompt",
        ),
        (
            {"decode": {"prompt*tight*index": 1}},
            "decode: term 'prompt*tight*index': a term has at most two factors; it must read like in_flight or ",
        ),
        ({"decode": {"": 1}}, "decode: term '': unknown feature of a decode instance ''; allowed: "),
        ({"prefill": {"queued": 1, "queued ": 2}}, "prefill: queued is given twice; each term may be given once"),
        ({"prefill": {"queued": "x"}}, "prefill.queued is 'x'; it must be a valid number"),
        ({"prefill": {"queued": 1e7}}, "prefill.queued is 10000000.0; it must be less than or equal to 1000000"),
        ({"prefill": {"queued": float("nan")}}, "prefill.queued is nan; it must be a finite number"),
        ({"prefill": 3}, "prefill is 3; it must be a valid mapping"),
    ],
)
def test_a_bad_weight_is_answered_by_a_sentence(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        make("linear", **params)
    assert str(error.value).startswith(f"linear: {sentence}")


@pytest.mark.parametrize(
    ("pools", "stages"), [((2, 4), {"prefill", "decode"}), ((1, 3), {"decode"}), ((0, 3), {"mixed"}), ((0, 1), set())]
)
def test_the_search_space_has_the_stages_in_which_there_is_a_choice(pools: tuple[int, int], stages: set[str]) -> None:
    space = policy_class("linear").search_space(*pools)
    assert {dimension.name for dimension in space} == stages
    assert len(space) < 60
    start = make("linear", **params_at(space, [d.place(d.start) for d in space]))
    default = make("linear").params
    for stage in stages:
        found = start.params[stage]
        assert {term: weight for term, weight in found.items() if weight} == default[stage]


def test_the_weights_of_a_request_fit_the_words_of_a_policy() -> None:
    most = max(len(columns) for columns in (F.PREFILL, F.DECODE, F.MIXED))
    assert -(-most // lanes.WIDTH) * lanes.WIDTH <= layout.POLICY_WORDS


def test_costs_are_the_sums_of_their_terms_and_the_least_one_is_the_choice() -> None:
    for topology in ("2P4D", "4M"):
        on = scenes.cluster(topology)
        arrays, policy = FeatureArrays.of_cluster(on), parse("linear@mixed-bursty")
        simulated = scenes.simulator(on, OF)
        last = -1
        for _ in range(120):
            assert simulated.run()
            admission = simulated.admission()
            features = arrays.of_admission(admission, last)
            costs, terms = policy.costs(features), policy.terms(features)  # type: ignore[attr-defined]
            choice = policy.route(admission)
            for pool, index in zip(costs, choice, strict=topology == "2P4D"):
                names, values = terms[pool]
                assert names == tuple(policy.params[pool]) and values.shape == (*costs[pool].shape, len(names))
                assert values.sum(axis=-1) == pytest.approx(costs[pool])
                assert costs[pool].argmin() == index
            last = admission.now
            simulated.send(*choice)


def test_costs_of_many_admissions_are_those_of_each() -> None:
    on = scenes.cluster()
    arrays, policy = FeatureArrays.of_cluster(on), parse('linear(prefill={"tight*queued": 2, "index": 1}, decode={})')
    simulated = scenes.simulator(on, OF)
    assert simulated.run()
    features = arrays.of_admission(simulated.admission())
    together = policy.costs({name: np.stack([values, 2 * values]) for name, values in features.items()})
    assert together is not None and (together["prefill"][0] == policy.costs(features)["prefill"]).all()  # type: ignore[index]
    assert together["decode"].shape == (2, 4) and (together["decode"] == 0).all()


def test_a_policy_without_costs_says_so() -> None:
    assert parse("least-loaded").costs({}) is None
