"""The environment under Stable-Baselines3."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.wrappers import FlattenObservation
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.envs.vector_environment import DisaggRouteVectorEnv
from disaggroute.envs.wrappers import DiscreteActions
from disaggroute.training.sb3_vec_env import Sb3VecEnv, make_sb3

SHORT: dict[str, Any] = {"config": "mixed-bursty-a40", "duration_s": 4.0, "warmup_s": 1.0}
NUMBER = 3


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Sums in one order, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(**arguments: Any) -> Sb3VecEnv:
    return make_sb3(num_envs=NUMBER, **SHORT | arguments)


def ppo(env: Any, policy: str = "MlpPolicy", algorithm: Any = PPO, **arguments: Any) -> Any:
    network = {"net_arch": [8]}
    return algorithm(
        policy, env, n_steps=16, batch_size=24, n_epochs=2, seed=1, device="cpu", policy_kwargs=network, **arguments
    )


@pytest.mark.parametrize("wrapped", [False, True], ids=["pairs", "discrete"])
def test_its_checker_accepts_the_single_environment(wrapped: bool) -> None:
    env = DisaggRouteEnv(**SHORT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A table of instances is no image, and is not meant to be one.
        warnings.filterwarnings("ignore", message="(?s).*unconventional shape")
        check_env(DiscreteActions(env) if wrapped else env)


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("discrete", [False, True])
def test_a_rollout_is_that_of_the_native_vector_environment(flatten: bool, discrete: bool) -> None:
    env = made(flatten=flatten, discrete=discrete)
    native = DisaggRouteVectorEnv(NUMBER, **SHORT, autoreset_mode="SameStep")
    flat = FlattenObservation(DisaggRouteEnv(**SHORT))

    def shown(observations: Any, i: int) -> Any:
        one = {key: value[i] for key, value in observations.items()}
        return flat.observation(one) if flatten else one

    assert env.observation_space == (flat.observation_space if flatten else native.single_observation_space)
    env.seed(11)
    observations = env.reset()
    expected, told = native.reset(seed=11)
    assert [info["trace_seed"] for info in env.reset_infos] == [11, 12, 13]
    random, ends = np.random.default_rng(0), 0
    returns, lengths = np.zeros(NUMBER), np.zeros(NUMBER, np.int64)
    while ends < 5:
        for i in range(NUMBER):
            mine = observations[i] if flatten else {key: value[i] for key, value in observations.items()}
            assert data_equivalence(mine, shown(expected, i))
        actions = random.integers([2, 4], size=(NUMBER, 2))
        env.step_async(actions[:, 0] * 4 + actions[:, 1] if discrete else actions)
        observations, rewards, dones, infos = env.step_wait()
        expected, native_rewards, ended, _, told = native.step(actions)
        assert rewards.dtype == np.float32 and rewards.tolist() == native_rewards.tolist()
        assert dones.tolist() == ended.tolist()
        returns += native_rewards
        lengths += 1
        for i in range(NUMBER):
            if not dones[i]:
                assert infos[i] == {}
                continue
            final = {key: value[None] for key, value in told["final_obs"][i].items()}
            assert data_equivalence(infos[i]["terminal_observation"], shown(final, 0))
            assert infos[i]["TimeLimit.truncated"] is False
            assert infos[i]["episode"]["r"] == returns[i] == -infos[i]["outcome"]["missed"]
            assert infos[i]["episode"]["l"] == lengths[i] and infos[i]["episode"]["t"] > 0
            assert env.reset_infos[i]["trace_seed"] == told["trace_seed"][i]
            returns[i] = lengths[i] = 0
            ends += 1


def test_a_reset_forgets_the_episodes_that_had_begun() -> None:
    def first_episodes(env: Sb3VecEnv) -> list[tuple[float, int]]:
        env.seed(3)
        env.reset()
        found: dict[int, tuple[float, int]] = {}
        while len(found) < NUMBER:
            for i, info in enumerate(env.step(np.zeros(NUMBER, np.int64))[3]):
                if "episode" in info:
                    found.setdefault(i, (info["episode"]["r"], info["episode"]["l"]))
        return [found[i] for i in range(NUMBER)]

    env = made(discrete=True)
    expected = first_episodes(env)
    for _ in range(5):
        env.step(np.zeros(NUMBER, np.int64))
    assert first_episodes(env) == expected


def test_without_a_seed_it_draws_tuning_seeds() -> None:
    env = made(duration_s=20.0)
    assert env.seed() == [None] * NUMBER
    env.reset()
    assert all(0 <= info["trace_seed"] < 10_000 for info in env.reset_infos)


def test_held_out_seeds_are_refused() -> None:
    env = made(duration_s=20.0)
    with pytest.raises(ValueError, match=r"seed 30000 is held out for claims .* Stable-Baselines3 may not use it"):
        env.seed(30_000 - NUMBER + 1)
    with pytest.raises(ValueError, match="is held out for claims"):
        PPO("MlpPolicy", made(flatten=True), seed=30_050, device="cpu")


def test_the_masks_are_found_per_environment() -> None:
    trouble = [{"at_s": 1.2, "instance": "decode/0", "action": "kill"}]
    pools = {role: {"count": n, "profile": "a40-qwen2.5-3b"} for role, n in (("prefill", 2), ("decode", 3))}
    env = made(cluster=pools | {"events": trouble}, rate=20)
    assert is_masking_supported(env)
    env.seed(0)
    env.reset()
    random = np.random.default_rng(0)
    for _ in range(20):
        masks = get_action_masks(env)
        assert masks.shape == (NUMBER, 5) and masks.dtype == np.bool_
        decode = [random.choice(np.flatnonzero(mask[2:])) for mask in masks]
        env.step(np.stack([np.zeros(NUMBER, np.int64), decode], axis=1))
    assert not masks[:, 2].any() and masks[:, 3:].all()
    assert env.env_method("action_masks", indices=1)[0].tolist() == masks[1].tolist()
    assert env.get_attr("action_masks", [2])[0]().tolist() == masks[2].tolist()
    assert get_action_masks(made(discrete=True)).shape == (NUMBER, 8)


@pytest.mark.parametrize("arguments", [{}, {"discrete": True, "flatten": True}, {"topology": "4M", "rate": 25}])
def test_maskable_ppo_learns_for_one_update(arguments: dict[str, Any]) -> None:
    env = made(**arguments)
    model = ppo(env, "MlpPolicy" if "flatten" in arguments else "MultiInputPolicy", MaskablePPO)
    before = [value.clone() for value in model.policy.parameters()]
    model.learn(NUMBER * 16)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))


def test_dqn_learns_from_discrete_actions() -> None:
    model = DQN(
        "MlpPolicy", made(flatten=True, discrete=True), buffer_size=200, learning_starts=12, batch_size=8, seed=1,
        device="cpu", policy_kwargs={"net_arch": [8]},
    )
    model.learn(60)
    assert model._n_updates > 0


def test_the_same_seed_gives_the_same_weights_and_another_one_others() -> None:
    def weights(seed: int) -> list[Any]:
        model = ppo(made(flatten=True))
        model.set_random_seed(seed)
        model.learn(NUMBER * 16)
        return [value.tolist() for value in model.policy.state_dict().values()]

    first = weights(1)
    assert first == weights(1)
    assert first != weights(2)


def test_what_was_saved_acts_the_same(tmp_path: Path) -> None:
    env = made()
    model = ppo(env, "MultiInputPolicy").learn(NUMBER * 16)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=env, device="cpu")
    env.seed(5)
    observations = env.reset()
    for _ in range(10):
        actions, _ = model.predict(observations, deterministic=True)
        assert loaded.predict(observations, deterministic=True)[0].tolist() == actions.tolist()
        observations, *_ = env.step(actions)


def test_the_mean_return_is_logged_and_evaluated_from_the_episodes() -> None:
    env = made(flatten=True)
    model = ppo(env).learn(NUMBER * 64)
    episodes = list(model.ep_info_buffer)
    assert episodes
    assert all(episode["r"] <= 0 and episode["l"] > 0 for episode in episodes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns where episodes are not monitored
        returns, lengths = evaluate_policy(model, env, n_eval_episodes=4, return_episode_rewards=True)
    assert len(returns) == len(lengths) == 4


def test_attributes_are_shared_by_the_environments() -> None:
    env = made(flatten=True)
    assert env.get_attr("observation_space", 0) == [env.observation_space]
    assert env.get_attr("action_space") == [gym.spaces.MultiDiscrete([2, 4])] * NUMBER
    assert env.get_attr("config")[0].scenario is not None and env.render_mode is None
    assert env.has_attr("config") and not env.has_attr("nothing")
    env.set_attr("label", "mine")
    assert env.get_attr("label", [0, 2]) == ["mine", "mine"]
    assert env.env_is_wrapped(Monitor) == [True] * NUMBER
    assert env.env_is_wrapped(FlattenObservation, [0]) == [False]
    env.close()


def test_what_it_cannot_do_is_said() -> None:
    env = made()
    with pytest.raises(ValueError, match=r"indices is \[0\]; the environments share label, so set it for all"):
        env.set_attr("label", 1, [0])
    with pytest.raises(AttributeError, match="method_name is 'render'; allowed is action_masks"):
        env.env_method("render")
    env.set_options({"speed": 2})
    with pytest.raises(ValueError, match=r"options is .*'speed': 2.*; reset takes none"):
        env.reset()
    env.set_options()
    env.seed(0)
    env.reset()
    with pytest.raises(RuntimeError, match=r"no step has begun; call step_async\(actions\) before step_wait\(\)"):
        env.step_wait()
    with pytest.raises(ValueError, match=r"the action space is Discrete\(4\) already"):
        made(topology="4M", rate=25, discrete=True)
    with pytest.raises(ValueError, match=r"autoreset_mode is NextStep; Stable-Baselines3 needs SameStep"):
        Sb3VecEnv(DisaggRouteVectorEnv(2, **SHORT))


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "disaggroute.training.sb3_vec_env"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.monitor", None)
    with pytest.raises(ImportError, match=r"stable-baselines3 is not installed.*pip install 'disaggroute\[train\]'"):
        importlib.import_module(name)


def test_it_tells_what_the_native_environment_told() -> None:
    envs, native = made(), DisaggRouteVectorEnv(NUMBER, **SHORT, autoreset_mode="SameStep")
    envs.seed(3)
    envs.reset()
    _, told = native.reset(seed=3)
    assert data_equivalence(envs.told, told)
    actions = np.zeros((NUMBER, 2), np.int64)
    envs.step(actions)
    assert data_equivalence(envs.told, native.step(actions)[-1])


def test_each_environment_can_have_a_trace_of_its_own() -> None:
    envs = made()
    envs.seed_each([7, 7, 9])
    envs.reset()
    assert envs.told["trace_seed"].tolist() == [7, 7, 9]
    with pytest.raises(ValueError, match="seed 30000 is held out"):
        envs.seed_each([1, 30_000, 2])


def test_a_policy_can_look_at_what_an_environment_awaits() -> None:
    envs = made()
    envs.seed_each([7, 8, 9])
    observation = envs.reset()
    for i in range(NUMBER):
        prompt = envs.at_admission(i, lambda admission: admission.prompt)
        assert prompt == round(float(observation["request"][i, 0]) * 1000)
