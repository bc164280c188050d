"""What an agent is shown: the features of the admission, as a policy object would compute them, and nothing else."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from disaggroute.envs import features, spaces
from disaggroute.envs.admission import Admission
from disaggroute.envs.cluster import Cluster
from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.envs.feature_arrays import FeatureArrays, Moments
from disaggroute.envs.features import Feature
from disaggroute.envs.setting import Setting
from disaggroute.envs.simulator import simulate
from disaggroute.policies import make

from ..differential.scenarios import engine, requests
from .environments import ARGUMENTS, SHORT, environment_of, rollout

Observation = dict[str, npt.NDArray[np.float32]]


class Retold:
    """A router that takes the actions of an episode, after a warm start, and notes the features of each admission."""

    def __init__(self, arrays: FeatureArrays, start: int, actions: list[Any]) -> None:
        self.arrays, self.start, self.actions = arrays, start, iter(actions)
        self.warm, self.seen, self.last = make("least-loaded"), [], {}  # type: ignore[var-annotated]

    def reset(self, seed: int) -> None:
        self.warm.reset(seed)

    def route(self, admission: Admission) -> tuple[int, int]:
        last = self.last.get(admission.router, -1)
        self.last[admission.router] = admission.now
        if admission.now < self.start:
            return self.warm.route(admission)
        self.seen.append(self.features(admission, Moments.of(admission, last)))
        action = next(self.actions)
        return (int(action),) * 2 if admission.aggregated else (int(action[0]), int(action[1]))

    def features(self, admission: Admission, moments: Moments) -> Observation:
        found = {"request": self.arrays.request(moments)}
        if admission.aggregated:
            return found | {"mixed": self.arrays.mixed(admission.prefill, admission.decode, moments)}
        prefill = self.arrays.prefill(admission.prefill, moments)
        return found | {"prefill": prefill, "decode": self.arrays.decode(admission.decode, moments)}


def episode(setting: str, seed: int = 3) -> tuple[DisaggRouteEnv, list[Any], list[Observation]]:
    """A random episode: the environment after it, its actions and its observations."""
    env = DisaggRouteEnv(**ARGUMENTS[setting])
    observation, _ = env.reset(seed=seed)
    steps = list(rollout(env))
    return env, [step.action for step in steps], [observation, *(step.observation for step in steps)]


@pytest.mark.parametrize("setting", ARGUMENTS)
def test_every_observation_has_the_bits_of_the_features_of_its_admission(setting: str) -> None:
    env, actions, observations = episode(setting)
    known = Setting.of(env.config.scenario)
    arrays = FeatureArrays.of_cluster(env.simulator.cluster, known.constants)
    router = Retold(arrays, known.window.start, actions)
    cluster, trace = env.simulator.cluster, env.simulator.trace
    simulate(trace, cluster, policy=router, predictor=known.predictor, seed=3, constants=known.constants)
    assert len(router.seen) == len(observations) - 1
    for observation, expected in zip(observations, router.seen, strict=False):
        assert observation.keys() == expected.keys()
        for key, shown in observation.items():
            rows = len(expected[key])
            assert shown.dtype == np.float32 and (shown[:rows] == expected[key]).all()
            assert not shown[rows:].any(), "padding is zero"
    assert not any(value.any() for value in observations[-1].values()), "nothing awaits a decision at the end"


def columns(observation: npt.NDArray[np.float32], of: tuple[Feature, ...], name: str) -> npt.NDArray[np.float32]:
    return observation[..., [feature.name for feature in of].index(name)]


def test_with_full_observability_lengths_are_true_and_polls_are_fresh() -> None:
    env = DisaggRouteEnv(**ARGUMENTS["full observability"])
    observation, info = env.reset(seed=3)
    used = 0.0
    for step in rollout(env):
        output = env.simulator.trace.output[info["request"]]
        assert columns(observation["request"], features.REQUEST, "predicted") == np.float32(output / 1000)
        for pool, of in (("prefill", features.PREFILL), ("decode", features.DECODE)):
            assert not columns(observation[pool], of, "poll_age").any()
        used += columns(observation["decode"], features.DECODE, "polled_usage").sum()
        observation, info = step.observation, step.info
    assert used > 0


def test_a_router_sees_polls_that_are_up_to_50_ms_old_and_lengths_that_are_guessed() -> None:
    env, _, observations = episode("as it comes")
    ages = np.array([columns(each["decode"], features.DECODE, "poll_age")[0] for each in observations[:-1]])
    assert 0 < ages.max() < np.float32(0.5) and len(set(ages.tolist())) > 10  # the divisor is 0.1 s
    guesses = {float(columns(each["request"], features.REQUEST, "predicted")) for each in observations[:-1]}
    assert guesses != {float(np.float32(tokens / 1000)) for tokens in env.simulator.trace.output}


@pytest.mark.parametrize(("topology", "pad_to"), [("2P3D", None), ("2P3D", (4, 5)), ("3M", None), ("3M", (7,))])
def test_the_spaces_have_a_row_for_every_instance_or_as_many_as_were_asked_for(topology: str, pad_to: Any) -> None:
    env = DisaggRouteEnv(**SHORT, topology=topology, pad_to=pad_to, rate=10)
    shapes = {key: box.shape for key, box in env.observation_space.spaces.items()}  # type: ignore[attr-defined]
    if topology == "3M":
        rows = 3 if pad_to is None else 7
        assert shapes == {"request": (6,), "mixed": (rows, 32)} and env.action_space == gym.spaces.Discrete(rows)
    else:
        prefills, decodes = (2, 3) if pad_to is None else (4, 5)
        assert shapes == {"request": (6,), "prefill": (prefills, 22), "decode": (decodes, 26)}
        assert env.action_space == gym.spaces.MultiDiscrete([prefills, decodes])


@pytest.mark.parametrize("cluster", [Cluster(prefill=(engine(),), decode=(engine(),)), Cluster(mixed=(engine(),) * 2)])
def test_targets_of_0_give_large_numbers_that_lie_in_the_space(cluster: Cluster) -> None:
    trace = requests(*((10 * k, 10, 3) for k in range(4)))
    trace.ttft_target[:2] = trace.tpot_target[1:3] = 0
    env = environment_of(trace, cluster)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    for step in rollout(env):
        assert step.observation in env.observation_space


def test_bounds_are_those_of_the_columns() -> None:
    space = spaces.observation_space(1, 1, aggregated=False)
    for key, of in (("request", features.REQUEST), ("prefill", features.PREFILL), ("decode", features.DECODE)):
        box = space[key]
        assert isinstance(box, gym.spaces.Box)
        bounds = dict(zip([f.name for f in of], zip(box.low.ravel(), box.high.ravel(), strict=True), strict=True))
        assert bounds.get("role", (-1, 1)) == (-1, 1) and bounds.get("available", (0, 1)) == (0, 1)
        assert all(low == 0 for name, (low, _) in bounds.items() if name != "role")
