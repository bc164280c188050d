"""Whole episodes: of each decision it is known what was seen, what was done, and what became of the request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disaggroute.policies.agent import PolicyAgent
from disaggroute.training.learning import episodes as E
from disaggroute.training.learning.config import TrainingScenario, TrainingSeeds

SCENARIO = TrainingScenario(workload="mixed-bursty-a40", rate=14, duration_s=6, warmup_s=2)
WIDE = TrainingScenario(workload="mixed-bursty-a40", topology="3P2D", rate=14, duration_s=6, warmup_s=2)
MIXED = TrainingScenario(workload="mixed-bursty-a40", topology="4M", rate=14, duration_s=6, warmup_s=2)
SEEDS = [5, 5, 6, 7]


def emptiest(shown: Any, alive: Any) -> tuple[Any, dict[str, Any]]:
    """The instances with the fewest requests."""
    actions = np.stack([shown["prefill"][:, :2, 0].argmin(axis=1), shown["decode"][:, :4, 0].argmin(axis=1)], axis=1)
    return actions, {"alive": alive.copy()}


@pytest.fixture(scope="module")
def played() -> E.Episodes:
    (env,) = E.environments([SCENARIO], len(SEEDS))
    return E.play(env, SEEDS, emptiest)


def test_decisions_are_numbered_as_the_living_are(played: E.Episodes) -> None:
    count = played.decisions
    assert count == played.alive.sum() == len(played.actions) == len(played.kept["alive"])
    assert all(len(rows) == count for rows in played.observations.values())
    assert played.kept["alive"].all()


def test_an_episode_that_has_ended_stays_ended(played: E.Episodes) -> None:
    assert played.alive[0].all()
    assert (np.diff(played.alive.astype(int), axis=0) <= 0).all()
    assert not played.rewards[~played.alive].any()


def test_episodes_with_one_seed_meet_the_same_requests(played: E.Episodes) -> None:
    assert (played.requests[:, 0] == played.requests[:, 1]).all()
    assert (played.requests[0, 0] != played.requests[0, 2]) or (played.alive[:, 0] != played.alive[:, 2]).any()


def test_every_miss_is_told_once_and_belongs_to_a_decision(played: E.Episodes) -> None:
    pairs = [tuple(pair) for pair in played.misses.tolist()]
    assert len(pairs) == len(set(pairs)) > 0
    assert -played.rewards.sum() == len(pairs)
    steps = played.routed_at[played.misses[:, 0], played.misses[:, 1]]
    assert (steps >= 0).all()
    assert (played.requests[steps, played.misses[:, 0]] == played.misses[:, 1]).all()


def test_they_are_the_episodes_of_the_single_environment(played: E.Episodes) -> None:
    from disaggroute.envs.environment import DisaggRouteEnv

    env = DisaggRouteEnv(SCENARIO.plain)
    for episode, seed in enumerate(SEEDS):
        total, outcome = PolicyAgent("least-loaded", env).play(seed)
        mine = played.misses[:, 0] == episode
        assert -total == mine.sum()
        assert outcome["requests"] == played.alive[:, episode].sum()


def test_time_passes_from_decision_to_decision(played: E.Episodes) -> None:
    assert (played.dt[played.alive] >= 0).all()
    assert played.dt[:, 0][played.alive[:, 0]].sum() >= 6.0, "the window, and what the cluster takes to drain"


def test_goodput_is_the_share_that_was_not_missed(played: E.Episodes) -> None:
    assert played.goodput == 1 - len(played.misses) / played.decisions


def test_values_spread_over_steps_and_episodes(played: E.Episodes) -> None:
    spread = played.spread(np.arange(1, played.decisions + 1))
    assert spread[played.alive].tolist() == list(range(1, played.decisions + 1))
    assert not spread[~played.alive].any()


def test_scenarios_with_other_pools_share_one_space() -> None:
    assert E.pool_sizes([SCENARIO, WIDE]) == (3, 4)
    first, second = E.environments([SCENARIO, WIDE], 2)
    assert first.observation_space == second.observation_space
    assert first.action_space == second.action_space
    assert E.play(first, [1, 2], emptiest).decisions > 0


def test_mixed_instances_are_refused() -> None:
    with pytest.raises(ValueError, match=r"all instances are mixed; this method needs prefill and decode pools"):
        E.pool_sizes([SCENARIO, MIXED])


def test_held_out_traces_are_refused() -> None:
    (env,) = E.environments([SCENARIO], 1)
    with pytest.raises(ValueError, match="seed 30000 is held out"):
        E.play(env, [30_000], emptiest)


def test_scenarios_take_turns_by_their_weights() -> None:
    turns = [E.whose_turn([2.0, 1.0, 1.0], update) for update in range(8)]
    assert [turns.count(k) for k in range(3)] == [4, 2, 2]
    assert set(turns[:4]) == {0, 1, 2}


def test_traces_differ_within_an_update_and_between_updates() -> None:
    seeds = TrainingSeeds(first=100, last=199)
    first, again, next_ = (E.traces(seeds, 3, update, 20) for update in (0, 0, 1))
    assert first == again != next_
    assert len(set(first)) == 20
    assert all(100 <= seed <= 199 for seed in first)
    assert E.traces(seeds, 4, 0, 20) != first


def test_few_seeds_are_used_again() -> None:
    assert set(E.traces(TrainingSeeds(first=7, last=8), 0, 0, 20)) == {7, 8}
