"""Which router gets which request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs import cluster_config
from disaggroute.envs.cluster import MAX_ROUTERS, Cluster
from disaggroute.envs.dealing import deal
from disaggroute.envs.digest import digest
from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.simulator import layout, simulate

from ..differential.cases import random_case
from .environments import ARGUMENTS, rollout

POLLED = ("used", "running", "waiting", "available")


def cluster(routers: int = 3, dealing: Any = "random") -> Cluster:
    return cluster_config.load("1p2d-a40", routers=routers, dealing=dealing).build()


def test_routers_take_turns_unless_told_otherwise() -> None:
    assert deal(cluster(3, "round-robin"), 7, seed=1).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert cluster_config.load("1p2d-a40", routers=3).dealing == "round-robin"


def test_at_random_each_router_gets_its_share() -> None:
    counts = np.bincount(deal(cluster(4), 40_000, seed=1))
    assert len(counts) == 4 and np.abs(counts - 10_000).max() < 400


@given(st.integers(1, MAX_ROUTERS), st.integers(0, 2**32 - 1), st.integers(0, 200))
def test_what_is_drawn_follows_from_the_seed_and_a_longer_trace_changes_nothing(
    routers: int, seed: int, requests: int
) -> None:
    drawn = deal(cluster(routers), requests, seed)
    assert drawn.tolist() == deal(cluster(routers), requests + 50, seed)[:requests].tolist()
    assert set(drawn.tolist()) <= set(range(routers))


def test_another_seed_deals_otherwise() -> None:
    assert deal(cluster(), 100, 1).tolist() != deal(cluster(), 100, 2).tolist()


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed is -1; it must be an integer of at least 0"):
        deal(cluster(), 1, -1)


def test_records_name_the_router_that_the_seed_gives() -> None:
    case = random_case(3, requests=40, failures=False)
    on = replace(case.cluster, routers=3, dealing="random")
    run = simulate(case.trace, on, assignment=case.assignment, seed=7)
    assert run.records["router"].tolist() == deal(on, len(case.trace), 7).tolist()


def test_an_episode_deals_by_its_own_seed() -> None:
    env = DisaggRouteEnv(**ARGUMENTS["three routers"])
    dealt = []
    for seed in (4, 5, 4):
        env.reset(seed=seed)
        for _ in rollout(env):
            pass
        dealt.append(env.simulator.records["router"].tolist())
        assert dealt[-1] == deal(env.simulator.cluster, len(dealt[-1]), seed).tolist()
    assert dealt[0] == dealt[2] != dealt[1]


def test_one_router_gets_everything_whatever_the_dealing() -> None:
    case = random_case(5, requests=40)
    dealt = [replace(case.cluster, routers=1, dealing=dealing) for dealing in ("round-robin", "random")]
    runs = [simulate(case.trace, on, assignment=case.assignment, observe=True) for on in dealt]
    assert runs[0].records.tobytes() == runs[1].records.tobytes()
    assert runs[0].decode_views.tobytes() == runs[1].decode_views.tobytes()


@given(st.integers(0, 2**32 - 1), st.integers(2, MAX_ROUTERS), st.sampled_from(["round-robin", "random"]))
def test_a_router_sees_the_polls_of_one_alone_and_part_of_its_ledger(seed: int, routers: int, dealing: Any) -> None:
    """The same routing has the same outcome; each ledger holds some of the requests of the one ledger."""
    case = random_case(seed)
    given_lengths = case.trace.output if isinstance(case.predicted, str) else case.predicted.astype(np.int32)
    alone, several = (
        simulate(
            case.trace,
            replace(case.cluster, routers=count, dealing=dealing),
            assignment=case.assignment,
            predictor=given_lengths,
            seed=seed,
            observe=True,
        )
        for count in (1, routers)
    )
    names = [name for name in alone.records.dtype.names or () if name != "router"]
    assert (alone.records[names] == several.records[names]).all()
    for whole, part, columns in (
        (alone.prefill_views, several.prefill_views, PREFILL_VIEW),
        (alone.decode_views, several.decode_views, DECODE_VIEW),
    ):
        polled = [columns.index(name) for name in POLLED]
        assert (whole[..., polled] == part[..., polled]).all()
        assert (part <= whole).all() and (part >= 0).all()


def test_the_core_has_room_for_as_many_routers_as_a_cluster_may_have() -> None:
    assert layout.MAX_ROUTERS == MAX_ROUTERS


def test_the_default_leaves_hashes_as_they_were_before_there_was_a_choice() -> None:
    assert digest(cluster(1, "round-robin")) == "d8eb697274f5670d"
    assert digest(cluster(2, "round-robin")) == "e2806a6c27b552cf"
    assert digest(cluster(2, "random")) != "e2806a6c27b552cf"
