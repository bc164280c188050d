"""One index in the place of (prefill, decode)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FlattenObservation

from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.envs.vector_environment import DisaggRouteVectorEnv
from disaggroute.envs.wrappers import DiscreteActions, VectorDiscreteActions

from .environments import ARGUMENTS, SHORT, pools

FAILING = ARGUMENTS["kills reroute"]


def discrete(**arguments: Any) -> DiscreteActions:
    return DiscreteActions(DisaggRouteEnv(**arguments))


def test_an_index_stands_for_the_pair_that_divmod_gives() -> None:
    env = discrete(**SHORT, topology="3P4D", rate=20)
    assert env.action_space == gym.spaces.Discrete(12)
    assert [env.action(a) for a in (0, 3, 4, np.int64(11))] == [(0, 0), (0, 3), (1, 0), (2, 3)]
    assert [env.reverse_action(env.action(a)) for a in range(12)] == list(range(12))


def test_an_episode_is_that_of_the_pairs() -> None:
    single, pairs = discrete(**FAILING), DisaggRouteEnv(**FAILING)
    observation, info = single.reset(seed=5)
    expected, told = pairs.reset(seed=5)
    seen, terminated = set(), False
    while not terminated:
        assert data_equivalence(observation, expected)
        prefill, decode = told["action_mask"]
        mask = info["action_mask"]
        assert mask.dtype == np.int8 and mask.tolist() == [p & d for p in prefill.tolist() for d in decode.tolist()]
        assert single.action_masks().dtype == np.bool_ and single.action_masks().tolist() == mask.tolist()
        seen.add(tuple(mask.tolist()))
        action = single.action_space.sample(mask=mask)
        observation, reward, terminated, truncated, info = single.step(action)
        expected, *rest, told = pairs.step(divmod(int(action), 3))
        assert [reward, terminated, truncated] == rest
    assert len(seen) > 2 and info["outcome"] == told["outcome"]


def test_gymnasium_accepts_it() -> None:
    check_env(discrete(**SHORT), skip_render_check=True)


@pytest.mark.parametrize("outer", [DiscreteActions, FlattenObservation])
def test_it_goes_around_gym_make_and_beside_other_wrappers_and_can_be_made_again(outer: Callable[..., gym.Env]) -> None:
    inner = FlattenObservation if outer is DiscreteActions else DiscreteActions
    env = outer(inner(gym.make("DisaggRoute-v0", **SHORT)))
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    for made in (env, again):
        assert made.action_space == gym.spaces.Discrete(8) and isinstance(made.observation_space, gym.spaces.Box)
        assert made.get_wrapper_attr("action_masks")().shape == (8,)
    told = [(made.reset(seed=4), made.step(7)) for made in (env, again)]
    assert data_equivalence(*told)
    assert told[0][0][1]["action_mask"].shape == (8,)


@pytest.mark.parametrize("action", [8, -1, True, 1.0, "0", None, [1, 2], (0, 0)])
def test_what_is_no_index_of_a_pair_is_refused(action: Any) -> None:
    env = discrete(**SHORT)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action is .*; it must be an integer from 0 to 7"):
        env.step(action)


@pytest.mark.parametrize("vector", [False, True])
def test_mixed_instances_have_one_index_already(vector: bool) -> None:
    arguments = SHORT | {"topology": "4M", "rate": 25}
    sentence = r"the action space is Discrete\(4\) already, as with mixed instances; .* leave them out here"
    with pytest.raises(ValueError, match=sentence):
        VectorDiscreteActions(DisaggRouteVectorEnv(2, **arguments)) if vector else discrete(**arguments)


def test_other_action_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the action space is Box\(.*; discrete actions need MultiDiscrete"):
        DiscreteActions(gym.make("Pendulum-v1"))


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("arguments", [SHORT, FAILING], ids=["as it comes", "failing"])
def test_the_vector_environment_is_the_same_as_single_ones(arguments: dict[str, Any], mode: str) -> None:
    vector = VectorDiscreteActions(DisaggRouteVectorEnv(3, **arguments, autoreset_mode=mode))
    singles = SyncVectorEnv([lambda: discrete(**arguments)] * 3, autoreset_mode=mode)
    assert vector.action_space == singles.action_space and vector.single_action_space == singles.single_action_space
    observations, infos = vector.reset(seed=7)
    assert data_equivalence((observations, infos), singles.reset(seed=7))
    random, ends = np.random.default_rng(0), 0
    while ends < 4:
        masks = infos["action_mask"]
        assert vector.action_masks().tolist() == masks.tolist()
        actions = np.array([random.choice(np.flatnonzero(mask)) if mask.any() else 0 for mask in masks])
        told = vector.step(actions)
        assert data_equivalence(told, singles.step(actions))
        infos, ends = told[-1], ends + int(told[2].sum())


def test_environments_that_do_not_begin_anew_have_no_mask_in_the_infos() -> None:
    vector = VectorDiscreteActions(DisaggRouteVectorEnv(2, **SHORT))
    vector.reset(seed=0)
    _, infos = vector.reset(options={"reset_mask": np.array([False, True])})
    assert infos["action_mask"].tolist() == [[0] * 8, [1] * 8]


@pytest.mark.parametrize(
    ("actions", "sentence"),
    [
        ([0, 8], "action of environment 1 is 8; it must be an integer from 0 to 7"),
        ([-1, 8], "action of environment 0 is -1; it must be an integer from 0 to 7"),
        ([0], r"actions have shape \(1,\) and dtype int64; they must be integers of shape \(2,\)"),
        ([0.0, 1.0], r"actions have shape \(2,\) and dtype float64; they must be integers of shape \(2,\)"),
    ],
)
def test_bad_actions_of_a_vector_are_refused(actions: list[Any], sentence: str) -> None:
    vector = VectorDiscreteActions(DisaggRouteVectorEnv(2, **SHORT))
    vector.reset(seed=0)
    with pytest.raises(ValueError, match=sentence):
        vector.step(np.array(actions))


def test_a_masked_pair_is_refused_by_what_masks_it() -> None:
    env = discrete(**SHORT | {"cluster": pools(2, 3), "rate": 12, "pad_to": [3, 4]})
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [1, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match=r"decode instance 3 is masked"):
        env.step(3)


def test_the_wrapper_of_vectors_wants_the_native_one() -> None:
    singles = SyncVectorEnv([lambda: DisaggRouteEnv(**SHORT)])
    with pytest.raises(ValueError, match=r"env is a SyncVectorEnv; .* DiscreteActions around each single environment"):
        VectorDiscreteActions(singles)
