"""The environment as Stable-Baselines3 takes it: many episodes in one `VecEnv`, stepped by one compiled call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from pydantic import BaseModel

from ..envs.vector_environment import DisaggRouteVectorEnv
from ..envs.wrappers import VectorDiscreteActions
from .seeds import refuse_held_out

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn
except ImportError as error:
    raise ImportError(
        "the library stable-baselines3 is not installed, and disaggroute.training.sb3_vec_env needs it; "
        "`pip install 'disaggroute[train]'`"
    ) from error

if TYPE_CHECKING:
    from ..envs.admission import Admission

T = TypeVar("T")


class Sb3VecEnv(VecEnv):
    """A native vector environment as a `VecEnv`.

    An episode that ends is followed by another at once. Its last info holds `terminal_observation`, `episode` (`r`
    return, `l` steps, `t` seconds since this object was made, from which SB3 logs `ep_rew_mean`), `outcome` and
    `trace_seed` (see `DisaggRouteEnv`) and `TimeLimit.truncated`, which is always False. Other infos are empty.
    `env_method("action_masks")` gives each environment's mask, as MaskablePPO asks for it.

    Attributes:
        told: infos of the native environment after the last reset or step, with `dt`, `request` and `missed` of every
            episode; at an end `final_info` has those of the episode that ended.

    Args:
        envs: with autoreset mode SameStep.
        flatten: one `Box` per observation, as `gymnasium.wrappers.FlattenObservation` makes it, for `MlpPolicy`; by
            default a `Dict`, for `MultiInputPolicy`.
        discrete: actions `Discrete(P·D)`, as `DiscreteActions` makes them.

    Raises:
        ValueError: another autoreset mode, or `discrete` with mixed instances.
    """

    def __init__(self, envs: DisaggRouteVectorEnv, *, flatten: bool = False, discrete: bool = False) -> None:
        if envs.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise ValueError(f"autoreset_mode is {envs.autoreset_mode.value}; Stable-Baselines3 needs SameStep")
        self._envs = envs
        self._flatten = flatten
        self._pairs = VectorDiscreteActions(envs) if discrete else None
        space = envs.single_observation_space
        assert isinstance(space, spaces.Dict)
        self._keys = tuple(space.spaces)
        self._actions: npt.NDArray[Any] | None = None
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, np.int64)
        self._made = time.perf_counter()
        self.told: dict[str, Any] = {}
        super().__init__(
            envs.num_envs,
            spaces.flatten_space(space) if flatten else space,
            envs.single_action_space if self._pairs is None else self._pairs.single_action_space,
        )

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds the next reset: environment i begins with trace seed + i; None: with one of the tuning seeds, drawn.

        Raises:
            ValueError: a trace would be one that is held out for claims.
        """
        return self.seed_each([None if seed is None else seed + i for i in range(self.num_envs)])

    def seed_each(self, seeds: Sequence[int | None]) -> Sequence[int | None]:
        """Seeds the next reset, each environment with a trace of its own.

        Args:
            seeds: (num_envs,); None: one of the tuning seeds, drawn.

        Raises:
            ValueError: a trace would be one that is held out for claims.
        """
        refuse_held_out([each for each in seeds if each is not None], "an agent of Stable-Baselines3")
        self._seeds = list(seeds)
        return self._seeds

    def reset(self) -> VecEnvObs:
        """Begins an episode in every environment.

        Raises:
            ValueError: options were set, or a seed is bad.
        """
        if any(self._options):
            raise ValueError(f"options is {self._options!r}; reset takes none")
        observations, told = self._envs.reset(seed=self._seeds)
        self.told = told
        self._reset_seeds()
        self._actions = None
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self.reset_infos = [{"trace_seed": seed} for seed in told["trace_seed"].tolist()]
        return self._shown(observations)

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """Takes the actions; `step_wait` does the step.

        Args:
            actions: (num_envs, 2), or (num_envs,) with `discrete` or mixed instances.
        """
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Routes one request in every environment.

        Returns:
            observations, rewards (num_envs,) float32, dones (num_envs,) bool, and a dict per environment.

        Raises:
            RuntimeError: no actions were given.
            ValueError: bad or masked actions; nothing was done.
        """
        actions, self._actions = self._actions, None
        if actions is None:
            raise RuntimeError("no step has begun; call step_async(actions) before step_wait()")
        if self._pairs is not None:
            actions = self._pairs.actions(actions)
        observations, rewards, done, _, told = self._envs.step(actions)
        self.told = told
        self._returns += rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done).tolist():
            infos[i] = self._last_info(i, told)
            self.reset_infos[i] = {"trace_seed": int(told["trace_seed"][i])}
            self._returns[i], self._lengths[i] = 0.0, 0
        return self._shown(observations), rewards.astype(np.float32), done, infos

    def _last_info(self, i: int, told: Mapping[str, Any]) -> dict[str, Any]:
        final = told["final_info"]
        observation = told["final_obs"][i]
        if self._flatten:
            observation = np.concatenate([observation[key].ravel() for key in self._keys])
        return {
            "terminal_observation": observation,
            "TimeLimit.truncated": False,
            "episode": {
                "r": float(self._returns[i]),
                "l": int(self._lengths[i]),
                "t": time.perf_counter() - self._made,
            },
            "outcome": {key: value[i].item() for key, value in final["outcome"].items() if not key.startswith("_")},
            "trace_seed": int(final["trace_seed"][i]),
        }

    def _shown(self, observations: dict[str, npt.NDArray[np.float32]]) -> VecEnvObs:
        if not self._flatten:
            return observations
        return np.concatenate([observations[key].reshape(self.num_envs, -1) for key in self._keys], axis=1)

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute, once per environment; all share it, except for `action_masks`.

        Raises:
            AttributeError: there is no such attribute.
        """
        which = self._get_indices(indices)
        if attr_name == "action_masks":
            return [partial(self._mask_of, i) for i in which]
        own = {"observation_space", "action_space"}
        value = getattr(self if attr_name in own else self._envs, attr_name)
        return [value for _ in which]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Sets an attribute of all environments.

        Raises:
            ValueError: it would be set for some only.
        """
        if set(self._get_indices(indices)) != set(range(self.num_envs)):
            raise ValueError(f"indices is {indices!r}; the environments share {attr_name}, so set it for all (None)")
        setattr(self._envs, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of each environment; `action_masks` is the one that there is.

        Raises:
            AttributeError: another one.
        """
        if method_name != "action_masks":
            raise AttributeError(f"method_name is {method_name!r}; allowed is action_masks")
        masks = self._masks()
        return [masks[i] for i in self._get_indices(indices)]

    def at_admission(self, i: int, look: Callable[[Admission], T]) -> T:
        """Shows the admission that awaits a decision in environment i.

        Raises:
            RuntimeError: no request awaits a decision there.
        """
        return self._envs.at_admission(i, look)

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether the environments do what a wrapper does: True for SB3's `Monitor`, since infos hold `episode`."""
        return [issubclass(Monitor, wrapper_class) for _ in self._get_indices(indices)]

    def _masks(self) -> npt.NDArray[np.bool_]:
        return self._envs.action_masks() if self._pairs is None else self._pairs.action_masks()

    def _mask_of(self, i: int) -> npt.NDArray[np.bool_]:
        row: npt.NDArray[np.bool_] = self._masks()[i]
        return row


def make_sb3(
    config: str | Path | Mapping[str, Any] | BaseModel = "mixed-bursty",
    num_envs: int = 64,
    *,
    flatten: bool = False,
    discrete: bool = False,
    threads: int = 1,
    **overrides: Any,
) -> Sb3VecEnv:
    """Environments for an algorithm of Stable-Baselines3.

    Args:
        config: as for `DisaggRouteEnv`.
        num_envs: how many.
        flatten: one flat `Box` per observation, which is quicker, for `MlpPolicy`.
        discrete: `Discrete(P·D)` actions, which DQN needs.
        threads: that step the environments; see `DisaggRouteVectorEnv`.
        **overrides: fields of the configuration.

    Raises:
        ValueError: a bad configuration or number, or `discrete` with mixed instances.
    """
    mode = AutoresetMode.SAME_STEP
    envs = DisaggRouteVectorEnv(num_envs, config, autoreset_mode=mode, threads=threads, **overrides)
    return Sb3VecEnv(envs, flatten=flatten, discrete=discrete)
