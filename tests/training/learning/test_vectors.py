"""Policies as vectors: the quick form decides like the stored one, and a search begins where it was told."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.policies import registry
from disaggroute.policies.linear import COLUMNS, Linear
from disaggroute.policies.network import Network
from disaggroute.policies.policy import Policy
from disaggroute.training.learning.config import PolicyConfig
from disaggroute.training.learning.vectors import LinearSpace, NetworkSpace, Space, Vectors, space_of, stages_of

SPLIT, MIXED = [(2, 4)], [(0, 4)]
MAIN = Scenario.make(workload="mixed-bursty", rate=12, duration_s=60, warmup_s=5)
AGGREGATED = MAIN.make(**(MAIN.model_dump() | {"topology": "4M"}))


def choices(policy: Policy, scenario: Scenario = MAIN) -> list[tuple[int, int]]:
    setting = Setting.of(scenario)
    records = setting.simulate(setting.prepare(3), policy, 3).records
    return list(zip(records["prefill"].tolist(), records["decode"].tolist(), strict=True))


def network(hidden: tuple[int, ...] = (6,), start: str | None = None, scale: float = 1.0) -> NetworkSpace:
    space = space_of(PolicyConfig(name="network", hidden=hidden, start=start), SPLIT, 0, terms="searched", scale=scale)
    assert isinstance(space, NetworkSpace)
    return space


def linear(which: str = "searched", start: str | None = None, scenario: Scenario = MAIN) -> LinearSpace:
    pools = MIXED if scenario is AGGREGATED else SPLIT
    space = space_of(PolicyConfig(name="linear", start=start), pools, 0, terms=which, scale=1.0)
    assert isinstance(space, LinearSpace)
    return space


def somewhere(space: Space, seed: int = 0) -> np.ndarray:
    return space.start + space.scale * np.random.default_rng(seed).standard_normal(len(space.start))


@pytest.mark.parametrize("scenario", [MAIN, AGGREGATED], ids=["split", "mixed"])
@pytest.mark.parametrize("which", ["searched", "all"])
def test_the_quick_linear_policy_decides_like_the_stored_one(which: str, scenario: Scenario) -> None:
    space = linear(which, scenario=scenario)
    for seed in range(3):
        vector = somewhere(space, seed)
        assert choices(space.quick(vector), scenario) == choices(space.policy(vector), scenario)
    assert choices(space.quick(somewhere(space, 0)), scenario) != choices(space.quick(somewhere(space, 1)), scenario)


def test_searched_terms_are_those_of_tune_and_all_are_more() -> None:
    terms = linear().terms
    assert set(terms) == {(d.name, d.key) for d in Linear.search_space(2, 4)}
    assert len(terms) < len(linear("all").terms)


@pytest.mark.parametrize("start", [None, "linear@mixed-bursty", "linear(prefill={\"tau_prefill\": 2.5})"])
def test_a_linear_search_begins_with_the_start_and_keeps_what_is_not_free(start: str | None) -> None:
    space = linear(start=start)
    policy = registry.parse(start or "linear")
    assert space.policy(space.start).hash == policy.hash
    moved = space.policy(somewhere(space)).params
    free = set(space.terms)
    for stage, terms in policy.params.items():
        assert all(moved[stage][term] == weight for term, weight in terms.items() if (stage, term) not in free)


def test_linear_weights_are_kept_within_what_the_policy_accepts() -> None:
    space = linear()
    assert max(space.policy(np.full(len(space.start), 1e9)).params["decode"].values()) == 1e6


@pytest.mark.parametrize("hidden", [(6,), (6, 3)])
def test_a_network_begins_like_the_linear_policy_it_starts_from(hidden: tuple[int, ...]) -> None:
    space = network(hidden, "linear@mixed-bursty")
    ours, theirs = choices(space.quick(space.start)), choices(registry.parse("linear@mixed-bursty"))
    assert np.mean([a == b for a, b in zip(ours, theirs, strict=True)]) > 0.99  # Its weights are float32.


def test_a_networks_free_weights_are_those_of_the_stages_with_a_choice() -> None:
    space = network()
    policy = space.policy(somewhere(space))
    assert isinstance(policy, Network)
    before, after = space.shape.split(space.base), space.shape.split(policy.vector_of_weights)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert {name.partition(".")[0] for name in changed} == {"prefill", "decode"}
    assert changed == {name for name in before if not name.startswith("mixed")}


def test_the_free_weights_of_a_network_may_be_those_of_some_columns_alone() -> None:
    columns = {"prefill": ("queued",), "decode": ("pending", "strict")}
    space = NetworkSpace.of(SPLIT, PolicyConfig(name="network", hidden=(6,)), None, 0, 1.0, columns)
    policy = space.policy(somewhere(space))
    assert isinstance(policy, Network)
    before, after = space.shape.split(space.base), space.shape.split(policy.vector_of_weights)
    assert {name for name in before if not np.array_equal(before[name], after[name])} == {"prefill.skip", "decode.skip"}
    for stage, names in columns.items():
        changed = np.flatnonzero((before[f"{stage}.skip"] != after[f"{stage}.skip"]).all(axis=0))
        assert [COLUMNS[stage][k].name for k in changed] == list(names)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({}, "parameters.columns names no column"),
        ({"decode": ()}, "parameters.columns names no column"),
        ({"mixed": ("queued",)}, "parameters.columns has mixed; the clusters have a choice in prefill, decode"),
        ({"decode": ("queued",)}, "unknown column of decode in parameters.columns 'queued'"),
        ({"decode": ("pending", "pending")}, "each column stands there once"),
    ],
)
def test_columns_that_cannot_be_searched_are_refused(columns: dict[str, tuple[str, ...]], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        NetworkSpace.of(SPLIT, PolicyConfig(name="network"), None, 0, 1.0, columns)


def test_columns_are_for_networks() -> None:
    with pytest.raises(ValueError, match=r"parameters.columns is for a network; linear has parameters.terms"):
        space_of(PolicyConfig(name="linear"), SPLIT, 0, terms="all", scale=1.0, columns={"decode": ("pending",)})


def test_a_network_goes_on_from_a_network() -> None:
    first = network()
    policy = first.policy(somewhere(first))
    again = NetworkSpace.of(SPLIT, PolicyConfig(name="network"), policy, 0, 1.0)
    assert again.policy(again.start).hash == policy.hash
    with pytest.raises(ValueError, match=r"policy.hidden is \[7\], but policy.start has \[6\]; leave hidden out"):
        NetworkSpace.of(SPLIT, PolicyConfig(name="network", hidden=(7,)), policy, 0, 1.0)


def test_a_network_starts_from_no_other_policy() -> None:
    with pytest.raises(ValueError, match=r"policy.start is least-loaded; a network can begin with a network or a lin"):
        network(start="least-loaded")


def test_first_hidden_weights_follow_from_the_seed_and_their_scale() -> None:
    config = PolicyConfig(name="network")
    one, same, other = (NetworkSpace.of(SPLIT, config, None, seed, 1.0) for seed in (0, 0, 1))
    assert one.base.tobytes() == same.base.tobytes() != other.base.tobytes()
    flat = NetworkSpace.of(SPLIT, config, None, 0, 0.0)
    assert not flat.shape.split(flat.base)["decode.context"].any()


def test_stages_are_those_in_which_some_cluster_has_a_choice() -> None:
    assert stages_of([(1, 2)]) == ("decode",)
    assert stages_of([(1, 2), (2, 1), (0, 3)]) == ("prefill", "decode", "mixed")
    with pytest.raises(ValueError, match="nothing to learn"):
        stages_of([(1, 1), (0, 1)])


@pytest.mark.parametrize("space", [linear(), network()], ids=["linear", "network"])
def test_vectors_travel_and_are_cut_into_parts(space: Space) -> None:
    points = np.stack([somewhere(space, seed) for seed in range(3)])
    whole = pickle.loads(pickle.dumps(Vectors(space, points, "least-loaded")))
    made = [choices(policy) for policy in whole.made()]
    assert len(whole) == len(made) == 4
    assert made[0] == choices(registry.make("least-loaded"))
    parts = [whole.part(first, last) for first, last in ((0, 1), (1, 3), (3, 4))]
    assert [len(part) for part in parts] == [1, 2, 1]
    assert [choices(policy) for part in parts for policy in part.made()] == made
