"""The single environment keeps Gymnasium's contract, in every registered configuration and in every kind of setting."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence

import disaggroute
from disaggroute.envs import cluster_config
from disaggroute.envs.environment import TRAINING_SEEDS, DisaggRouteEnv
from disaggroute.envs.environment_config import EnvironmentConfig, names
from disaggroute.envs.setting import Setting
from disaggroute.training.seeds import TUNING

from .environments import ARGUMENTS, SHORT, Arguments, masked_sample, pools, rollout
from .test_vector_environment import spoil

REGISTERED = {f"{name}, registered": {"config": name, "warmup_s": 1.0, "duration_s": 4.0} for name in names()}
REGISTERED["document, registered"]["duration_s"] = 30.0  # it is quiet for seconds at a time
ALL = REGISTERED | ARGUMENTS
NARROW = {"pad_to", "events"}
"""Arguments by which an action that is only sampled may be masked."""

ALWAYS_OPEN = {
    name: setting for name, setting in ARGUMENTS.items() if not NARROW & (setting | setting.get("cluster", {})).keys()
}
SOME = {name: ARGUMENTS[name] for name in ("as it comes", "aggregated, padded, failing", "kills reroute")}


def made(arguments: Arguments, **changes: Any) -> gym.Env[Any, Any]:
    return gym.make(disaggroute.ENVIRONMENT, **arguments | changes)


def actions_of(env: DisaggRouteEnv, seed: int = 0) -> list[Any]:
    """The actions of a random episode that begins with this seed, until its end."""
    env.reset(seed=seed)
    return [step.action for step in rollout(env)]


def retold(env: Any, actions: list[Any], seed: int = 0) -> list[Any]:
    """All that an environment tells when these actions are taken."""
    return [env.reset(seed=seed), *(env.step(action) for action in actions)]


def checked(env: gym.Env[Any, Any]) -> None:
    env.np_random = np.random.default_rng(0)  # some resets of the checker have no seed
    env.action_space.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize("name", names())
def test_gymnasiums_checker_finds_nothing_in_a_registered_configuration(name: str) -> None:
    checked(made({"config": name}).unwrapped)


@pytest.mark.parametrize("setting", ALWAYS_OPEN)
def test_gymnasiums_checker_finds_nothing(setting: str) -> None:
    checked(made(ALWAYS_OPEN[setting]).unwrapped)


@pytest.mark.parametrize("setting", SOME)
def test_gymnasiums_passive_checker_finds_nothing_in_a_whole_episode(setting: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(disaggroute.ENVIRONMENT, disable_env_checker=False, **SOME[setting])
        env.reset(seed=0)
        env.action_space.seed(0)
        terminated = False
        while not terminated:
            action = masked_sample(env.unwrapped)  # type: ignore[arg-type]
            _, _, terminated, _, _ = env.step(action)


@pytest.mark.parametrize("setting", ALL)
def test_a_random_episode_ends_and_its_observations_lie_in_the_space(setting: str) -> None:
    env = DisaggRouteEnv(**ALL[setting])
    observation, info = env.reset(seed=1)
    assert observation in env.observation_space
    keys = {"dt", "now", "request", "missed", "action_mask", "trace_seed"}
    assert set(info) == keys and info["trace_seed"] == 1
    for step in rollout(env):
        assert step.observation in env.observation_space
        assert set(step.info) == keys | ({"outcome"} if step.terminated else set())
        assert isinstance(step.reward, float) and isinstance(step.terminated, bool)
        assert (step.info["request"] == -1) == step.terminated
    assert not any(value.any() for value in step.observation.values())
    assert (env.simulator.records["end"] >= 0).all(), "every outcome is counted"


@pytest.mark.parametrize("setting", ALL)
def test_the_same_seed_tells_the_same_bytes_in_another_instance_and_again(setting: str) -> None:
    env, other = DisaggRouteEnv(**ALL[setting]), DisaggRouteEnv(**ALL[setting])
    actions = actions_of(env, seed=2)
    first = retold(env, actions, seed=2)
    assert data_equivalence(first, retold(other, actions, seed=2), exact=True)
    assert data_equivalence(first, retold(env, actions, seed=2), exact=True)


def test_another_seed_tells_something_else() -> None:
    env = DisaggRouteEnv(**SHORT)
    assert not data_equivalence(env.reset(seed=1)[0], env.reset(seed=2)[0])


def test_a_reset_without_a_seed_draws_a_tuning_seed_from_the_last_seed() -> None:
    assert [seed in TUNING for seed in (0, TRAINING_SEEDS - 1, TRAINING_SEEDS)] == [True, True, False]
    env, other = DisaggRouteEnv(**SHORT), DisaggRouteEnv(**SHORT)
    drawn = [[each.reset(seed=seed)[1]["trace_seed"] for seed in (5, None, None, 5, None)] for each in (env, other)]
    assert drawn[0] == drawn[1]
    assert drawn[0][0] == drawn[0][3] == 5 and drawn[0][1] == drawn[0][4] != drawn[0][2]
    assert all(seed in TUNING for seed in drawn[0])


def test_an_episode_left_early_leaves_no_trace_in_the_next() -> None:
    env, other = DisaggRouteEnv(**SHORT), DisaggRouteEnv(**SHORT)
    actions = actions_of(other, seed=4)
    env.reset(seed=3)
    for _ in range(20):
        env.step((0, 0))
    assert data_equivalence(retold(env, actions, seed=4), retold(other, actions, seed=4), exact=True)


def test_the_trace_is_the_one_that_evaluate_drives_with_that_seed() -> None:
    env = DisaggRouteEnv(**SHORT)
    env.reset(seed=7)
    expected = Setting.of(env.config.scenario.at_rate(13.97)).prepare(7).trace
    assert all((getattr(env.simulator.trace, name) == getattr(expected, name)).all() for name in ("arrival", "output"))


def test_time_passes_from_decision_to_decision() -> None:
    env = DisaggRouteEnv(**SHORT)
    _, info = env.reset(seed=1)
    assert info["now"] >= 1.0 and info["dt"] == pytest.approx(info["now"] - 1.0)
    for step in rollout(env):
        assert step.info["now"] - info["now"] == pytest.approx(step.info["dt"], abs=1e-9)
        if not step.terminated:
            assert step.info["now"] == env.simulator.trace.arrival[step.info["request"]] / 1e12
        info = step.info
    assert info["now"] == env.simulator.records["end"].max() / 1e12


@pytest.mark.parametrize("setting", SOME)
def test_what_was_handed_out_is_the_users_own(setting: str) -> None:
    env, other = DisaggRouteEnv(**SOME[setting]), DisaggRouteEnv(**SOME[setting])
    actions = actions_of(other)
    expected = retold(other, actions)
    told = env.reset(seed=0)
    for k, action in enumerate(actions):
        assert data_equivalence(told, expected[k], exact=True)
        mask = env.action_masks()
        spoil((told, mask))
        told = env.step(action)
    assert data_equivalence(told, expected[-1], exact=True)


@pytest.mark.parametrize("copied", [lambda env: pickle.loads(pickle.dumps(env)), copy.deepcopy])
@pytest.mark.parametrize("setting", SOME)
def test_an_environment_can_be_pickled_and_copied_before_its_first_reset(setting: str, copied: Any) -> None:
    env = made(SOME[setting])
    env.action_space.seed(3)
    twin = copied(env)
    assert twin.spec == env.spec and twin.unwrapped.config == env.unwrapped.config  # type: ignore[attr-defined]
    assert data_equivalence(twin.action_space.sample(), env.action_space.sample())
    actions = actions_of(DisaggRouteEnv(**SOME[setting]))
    assert data_equivalence(retold(twin, actions), retold(env, actions), exact=True)


def test_what_is_drawn_for_seeds_goes_on_in_a_pickled_environment() -> None:
    env = DisaggRouteEnv(**SHORT)
    env.np_random = np.random.default_rng(5)
    assert pickle.loads(pickle.dumps(env)).reset()[1]["trace_seed"] == env.reset()[1]["trace_seed"]


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_an_environment_whose_episode_has_begun_is_not_pickled_but_says_so(copied: Any) -> None:
    env = DisaggRouteEnv(**SHORT)
    env.reset(seed=1)
    with pytest.raises(TypeError, match="cannot be copied or pickled once an episode has begun; do it before"):
        copied(env)
    env.step((0, 0))


ARGUMENT_TYPES: dict[str, Arguments] = {
    "plain": {"pad_to": (3, 5), "predictor": "noisy(0.5)"},
    "a mapping": {"config": {"workload": "chat", "topology": "1P2D", "rate": 9}},
    "a model": {"config": EnvironmentConfig.load("chat"), "topology": "1P3D", "rate": 9.0},
    "a model in place of another": {"config": EnvironmentConfig.load("chat"), "cluster": "2p6d-a40", "rate": 9.0},
    "a cluster as a mapping": {"cluster": pools(on_kill="reroute"), "rate": 9.0},
    "a cluster as a model": {"cluster": cluster_config.from_topology("2P2D", "a40-qwen2.5-3b"), "rate": 9.0},
    "a model in a mapping": {"config": {"cluster": cluster_config.load("2p3d-a40")}},
    "numbers of NumPy": {"rate": np.float32(9), "duration_s": np.int64(4), "pad_to": np.array([3, 5])},
}


@pytest.mark.parametrize("kind", ARGUMENT_TYPES)
def test_a_spec_that_went_through_json_makes_an_equal_environment(kind: str) -> None:
    env = made(SHORT | ARGUMENT_TYPES[kind])
    assert env.spec is not None
    spec = EnvSpec.from_json(env.spec.to_json())
    assert spec == env.spec
    again = gym.make(spec)
    assert again.unwrapped.config == env.unwrapped.config  # type: ignore[attr-defined]
    assert data_equivalence(again.reset(seed=1), env.reset(seed=1), exact=True)


def test_the_spec_names_a_path_as_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workload: chat\ntopology: 1P2D\nrate: 9\nduration_s: 3\nwarmup_s: 0\n")
    env = made({"config": path})
    assert env.spec is not None and env.spec.kwargs == {"config": str(path)}
    assert env.unwrapped.config.workload == "chat"  # type: ignore[attr-defined]
    env.spec.to_json()


def test_gymnasiums_wrappers_work() -> None:
    env: Any = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.FlattenObservation(made(SHORT)))
    env.action_space.seed(0)
    observation, _ = env.reset(seed=1)
    assert observation.shape == (6 + 2 * 22 + 4 * 26,) and observation in env.observation_space
    total, terminated = 0.0, False
    while not terminated:
        _, reward, terminated, _, info = env.step(env.action_space.sample())
        total += reward
    assert info["episode"]["r"] == total


def test_a_time_limit_of_gymnasium_truncates() -> None:
    env = gym.make(disaggroute.ENVIRONMENT, max_episode_steps=5, **SHORT)
    env.reset(seed=1)
    assert [env.step((0, 0))[3] for _ in range(5)] == [False] * 4 + [True]


def test_closing_twice_is_allowed() -> None:
    env = made(SHORT)
    env.reset(seed=1)
    env.close()
    env.close()


def test_a_trace_file_can_drive_the_environment(tmp_path: Path) -> None:
    rows = "\n".join(f"{k * 0.1},{100 + k},{10 + k % 7}" for k in range(80))
    path = tmp_path / "recorded.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    env = DisaggRouteEnv({"workload": str(path), "topology": "1P2D", "warmup_s": 2, "duration_s": 5})
    env.reset(seed=1)
    assert len(list(rollout(env))) == 50
    assert env.simulator.trace.name == "recorded"
