"""The same policy object routes in `simulate` and plays the environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

import disaggroute
from disaggroute.envs.admission import Admission, Router
from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.envs.setting import Setting
from disaggroute.policies import make, parse
from disaggroute.policies.agent import PolicyAgent

from ..envs.environments import ARGUMENTS, SHORT

POLICIES = ("round-robin", "random", "length-threshold", "marginal-cost(sample=2)", "least-ttft(decode=min-tpot)")
SETTINGS = ("as it comes", "aggregated", "kills fail", "kills reroute, mixed", "three routers, failing", "regression")


class AfterWarmUp:
    """Least-loaded until an instant, another policy from then on."""

    def __init__(self, start: int, then: Router) -> None:
        self.start, self.then, self.first = start, then, make("least-loaded")

    def reset(self, seed: int) -> None:
        self.first.reset(seed)
        self.then.reset(seed)

    def route(self, admission: Admission) -> tuple[int, int]:
        return (self.first if admission.now < self.start else self.then).route(admission)


def simulated(env: DisaggRouteEnv, policy: Router, seed: int) -> Any:
    """The records of `simulate` on the trace that the environment's episode had."""
    setting = Setting.of(env.config.scenario)
    return disaggroute.simulate(
        env.simulator.trace,
        env.simulator.cluster,
        AfterWarmUp(setting.window.start, policy),
        predictor=setting.predictor,
        seed=seed,
        constants=setting.constants,
    ).records


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_an_episode_has_the_records_of_simulate_with_the_same_policy(setting: str, policy: str) -> None:
    env = DisaggRouteEnv(**ARGUMENTS[setting])
    agent = PolicyAgent(policy, env)
    total, outcome = agent.play(seed=3)
    assert total == -outcome["missed"]
    assert (env.simulator.records == simulated(env, parse(policy), seed=3)).all()


def test_an_object_plays_like_its_name_and_starts_anew_with_every_episode() -> None:
    env = DisaggRouteEnv(**SHORT)
    agent = PolicyAgent(make("random"), env)
    assert agent.play(seed=4) == agent.play(seed=4) == PolicyAgent("random", env).play(seed=4)
    assert agent.play(seed=4) != agent.play(seed=5)


def test_without_a_seed_an_episode_of_a_tuning_seed_is_played() -> None:
    env = DisaggRouteEnv(**SHORT)
    env.reset(seed=1)
    drawn, again = PolicyAgent("least-loaded", env).play(), DisaggRouteEnv(**SHORT)
    again.reset(seed=1)
    assert PolicyAgent("least-loaded", again).play() == drawn


def test_an_agent_acts_in_a_wrapped_environment() -> None:
    env = gym.wrappers.FlattenObservation(gym.make(disaggroute.ENVIRONMENT, **SHORT))
    agent = PolicyAgent("round-robin", env)
    env.reset(seed=1)
    agent.policy.reset(1)
    actions = []
    for _ in range(3):
        actions.append(agent.act())
        env.step(actions[-1])
    assert actions == [(0, 0), (1, 1), (0, 2)]


def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^env is .*CartPole.*; it must be a DisaggRoute environment$"):
        PolicyAgent("random", gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match="unknown policy 'rnadom'; nearest: random"):
        PolicyAgent("rnadom", DisaggRouteEnv(**SHORT))
    with pytest.raises(RuntimeError, match="no episode has begun"):
        PolicyAgent("random", DisaggRouteEnv(**SHORT)).act()
