"""The vector benchmark steps whole episodes and counts only what was decided."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import disaggroute
from disaggroute.benchmarks.vector import CONFIG, Walk, drawn, least_loaded, measure, stretches
from disaggroute.policies import registry
from disaggroute.policies.run import simulate

TINY = {"duration_s": 3, "warmup_s": 1}


def made(count: int, mode: str | None = None) -> Any:
    return gym.make_vec(disaggroute.ENVIRONMENT, count, mode, config=CONFIG, **TINY)


def test_every_number_of_environments_gets_a_speed_and_the_first_more_than_that() -> None:
    results = {r.name: r for r in measure(envs=[3, 1], sync_envs=2, episodes=2, repeats=2, threads=2, overrides=TINY)}
    assert {name: result.unit for name, result in results.items()} == {
        "vector/3": "decisions/s",
        "vector/3/least-loaded": "decisions/s",
        "vector/3/reset": "ms",
        "vector/1": "decisions/s",
        "vector/2/sync": "decisions/s",
        "vector/2/over-sync": "×",
        "vector/3/threads-2": "decisions/s",
    }
    for name, result in results.items():
        assert result.repeats == 2 and 0 < result.min <= result.value <= result.max
        if result.unit == "decisions/s":
            assert 0 <= result.details["goodput"] <= 1 and result.details["requests"] > 0, name


def test_the_comparison_can_be_left_out() -> None:
    names = [r.name for r in measure(envs=[1], sync_envs=0, episodes=1, repeats=1, threads=1, overrides=TINY)]
    assert names == ["vector/1", "vector/1/least-loaded", "vector/1/reset"]


def test_the_decisions_of_whole_episodes_are_their_requests() -> None:
    env = made(1)
    walk = Walk(env, drawn(1, env.single_action_space.nvec, 0), seed=5)
    counted = [walk.stretch(2).decisions, walk.stretch(1).decisions]

    single: Any = gym.make(disaggroute.ENVIRONMENT, config=CONFIG, **TINY)
    lengths = []
    for seed in (5, None, None):
        single.reset(seed=seed)
        steps, ended = 0, False
        while not ended:
            ended, steps = single.step((0, 0))[2], steps + 1
        lengths.append(steps)
    assert counted == [lengths[0] + lengths[1], lengths[2]]


def test_a_stretch_ends_when_as_many_episodes_have_ended_as_asked_for() -> None:
    env = made(3)
    ends = 0
    step = env.step

    def counting(actions: Any) -> Any:
        nonlocal ends
        out = step(actions)
        ends += int(out[2].sum())
        return out

    env.step = counting
    Walk(env, least_loaded, seed=0).stretch(7)
    assert 7 <= ends < 7 + 3


def test_both_kinds_of_vector_environment_are_given_the_same_work() -> None:
    walks = [Walk(env, drawn(2, env.single_action_space.nvec, 0), 0) for env in (made(2), made(2, "sync"))]
    native, sync = stretches(walks, 3, 2)
    assert [(s.decisions, s.goodput) for s in native] == [(s.decisions, s.goodput) for s in sync]


def test_drawn_actions_are_legal_reach_every_instance_and_come_again_with_the_seed() -> None:
    choose, again, other = drawn(8, [2, 4], 1), drawn(8, [2, 4], 1), drawn(8, [2, 4], 2)
    steps = [choose({}) for _ in range(50)]
    assert np.array_equal(steps, [again({}) for _ in range(50)])
    assert not np.array_equal(steps, [other({}) for _ in range(50)])
    seen = np.concatenate(steps)
    assert set(seen[:, 0]) == {0, 1} and set(seen[:, 1]) == {0, 1, 2, 3}


def test_least_loaded_by_the_observation_is_the_policy_least_loaded() -> None:
    env = made(1)
    episode: Any = env
    observation, infos = env.reset(seed=3)
    chosen = {}
    ended = False
    while not ended:
        action = least_loaded(observation)
        chosen[int(infos["request"][0])] = tuple(action[0].tolist())
        observation, _, done, _, infos = episode.step(action)
        ended = bool(done[0])
    simulator = env._episodes.simulator(0)
    told = simulate(simulator.trace, simulator.cluster, policy=registry.make("least-loaded"), seed=3).records
    assert len(chosen) > 5
    assert chosen == {k: (int(told[k]["prefill"]), int(told[k]["decode"])) for k in chosen}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"envs": [4, 0]}, "envs is 0; it must be at least 1"),
        ({"sync_envs": -1}, "sync_envs is -1; it must be at least 0"),
        ({"episodes": 0}, "episodes is 0; it must be at least 1"),
        ({"repeats": 0}, "repeats is 0; it must be at least 1"),
    ],
)
def test_a_count_that_is_too_small_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        measure(**given)
