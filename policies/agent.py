"""A policy that plays the environment: the same object that routes in `simulate` and in front of engines."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from ..envs.admission import Admission, Router
from ..envs.environment_backends import RoutingEnv
from . import registry


class PolicyAgent:
    """Chooses actions by a policy, from what the router of the environment's cluster sees.

    It reads the admission itself and not the observation, so any wrapper around the environment may stay. The warm
    start is routed by `least-loaded` and not by the policy.

    Args:
        policy: the policy, or its name with parameters where wanted.
        env: the environment, wrapped or not.

    Raises:
        ValueError: an unknown policy, or an environment of another kind.
    """

    def __init__(self, policy: str | Router, env: gym.Env[Any, Any]) -> None:
        routed = env.unwrapped
        if not isinstance(routed, RoutingEnv):
            raise ValueError(f"env is {env}; it must be a DisaggRoute environment")
        self.policy = registry.parse(policy) if isinstance(policy, str) else policy
        self._env: RoutingEnv = routed

    def act(self) -> Any:
        """The action for the request that awaits a decision: (prefill, decode), or the index of a mixed instance.

        Raises:
            RuntimeError: no request awaits a decision.
        """
        return self._env.at_admission(self._chosen)

    def _chosen(self, admission: Admission) -> Any:
        prefill, decode = self.policy.route(admission)
        return decode if admission.aggregated else (prefill, decode)

    def play(self, seed: int | None = None) -> tuple[float, dict[str, float]]:
        """Plays an episode of the environment without its wrappers.

        Args:
            seed: of the trace, as for `reset`; the policy begins with the trace's seed, as in `disaggroute evaluate`.

        Returns:
            The return, and `outcome` of the last info.
        """
        _, info = self._env.reset(seed=seed)
        self.policy.reset(info["trace_seed"])
        total, terminated = 0.0, False
        while not terminated:
            _, reward, terminated, _, info = self._env.step(self.act())
            total += reward
        return total, info["outcome"]
