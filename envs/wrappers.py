"""One index in the place of (prefill, decode), for algorithms that need a `Discrete` action space."""

from __future__ import annotations

from operator import index
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector.utils import batch_space

from .environment import Info
from .vector_environment import Bools, DisaggRouteVectorEnv, Rewards

Masks = npt.NDArray[np.int8]


class DiscreteActions(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Makes one `Discrete(P·D)` of `MultiDiscrete([P, D])`: action a means `divmod(a, D)`.

    `info["action_mask"]` becomes one int8 array (P·D,): which pairs are allowed. It goes around an environment that
    `gym.make` made, with or without other wrappers.

    Args:
        env: with separate prefill and decode instances.

    Raises:
        ValueError: the action space is another one; with mixed instances it is `Discrete` already.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        self._prefills, self._decodes = pools_of(env.action_space)
        self.action_space = spaces.Discrete(self._prefills * self._decodes)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        """Begins an episode, as the environment does."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._told(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Routes the request that awaits a decision.

        Args:
            action: index of a pair.

        Raises:
            ValueError: it is no integer, out of range, or the pair is masked.
        """
        observation, reward, terminated, truncated, info = self.env.step(self.action(action))
        return observation, reward, terminated, truncated, self._told(info)

    def action(self, action: Any) -> tuple[int, int]:
        """The pair (prefill, decode) of an index.

        Raises:
            ValueError: it is no integer, or out of range.
        """
        count = self._prefills * self._decodes
        try:
            if action is True or action is False:
                raise TypeError
            chosen = index(action)
        except TypeError:
            chosen = -1
        if not 0 <= chosen < count:
            raise ValueError(f"action is {action!r}; it must be an integer from 0 to {count - 1}")
        return divmod(chosen, self._decodes)

    def reverse_action(self, pair: Any) -> int:
        """The index of a pair (prefill, decode)."""
        prefill, decode = pair
        return int(prefill) * self._decodes + int(decode)

    def action_masks(self) -> Bools:
        """(P·D,) which pairs are allowed."""
        return of_pairs(self.env.get_wrapper_attr("action_masks")(), self._prefills)

    def _told(self, info: Info) -> Info:
        return info | {"action_mask": of_pairs(np.concatenate(info["action_mask"]), self._prefills)}


class VectorDiscreteActions(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """`DiscreteActions` for all environments of the native vector environment at once.

    Infos and actions are those of `gymnasium.vector.SyncVectorEnv` over as many wrapped single environments.

    Args:
        env: made by `gym.make_vec("DisaggRoute-v0", …)`, with separate prefill and decode instances.

    Raises:
        ValueError: another kind of environment, or mixed instances.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        native = env.unwrapped
        if not isinstance(native, DisaggRouteVectorEnv):
            raise ValueError(
                f"env is a {type(native).__name__}; VectorDiscreteActions goes around a DisaggRouteVectorEnv, and "
                "DiscreteActions around each single environment of others"
            )
        self._native = native
        self._prefills, self._decodes = pools_of(env.single_action_space)
        self.single_action_space = spaces.Discrete(self._prefills * self._decodes)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        """Begins episodes, as the environment does."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, self._told(infos)

    def step(self, actions: Any) -> tuple[Any, Rewards, Bools, Bools, Info]:
        """Routes one request in every environment.

        Args:
            actions: (num_envs,) indices of pairs.

        Raises:
            ValueError: bad actions; nothing was done.
        """
        observations, rewards, terminated, truncated, infos = self.env.step(self.actions(actions))
        return observations, rewards, terminated, truncated, self._told(infos)

    def actions(self, actions: Any) -> npt.NDArray[np.int64]:
        """(num_envs, 2) the pairs (prefill, decode) of indices (num_envs,).

        Raises:
            ValueError: they are no integers, too many or too few, or out of range.
        """
        chosen, count = np.asarray(actions), self._prefills * self._decodes
        if chosen.shape != (self.num_envs,) or chosen.dtype.kind not in "iu":
            raise ValueError(
                f"actions have shape {chosen.shape} and dtype {chosen.dtype}; they must be integers of shape "
                f"({self.num_envs},)"
            )
        bad = (chosen < 0) | (chosen >= count)
        if bad.any():
            i = int(np.argmax(bad))
            raise ValueError(f"action of environment {i} is {chosen[i]}; it must be an integer from 0 to {count - 1}")
        return np.stack(np.divmod(chosen.astype(np.int64), self._decodes), axis=1)

    def action_masks(self) -> Bools:
        """(num_envs, P·D) which pairs are allowed."""
        return of_pairs(self._native.action_masks(), self._prefills)

    def _told(self, infos: Info) -> Info:
        masks = self.action_masks().astype(np.int8)
        masks[~infos["_action_mask"]] = 0
        infos = infos | {"action_mask": masks}
        if "final_info" in infos:
            final = dict(infos["final_info"])
            masks = np.zeros_like(masks)
            for i in np.flatnonzero(final["_action_mask"]):
                masks[i] = of_pairs(np.concatenate(final["action_mask"][i]), self._prefills)
            infos["final_info"] = final | {"action_mask": masks}
        return infos


def pools_of(space: gym.Space[Any]) -> tuple[int, int]:
    """Numbers of prefill and decode instances in an action space.

    Raises:
        ValueError: it has none.
    """
    if isinstance(space, spaces.Discrete):
        raise ValueError(
            f"the action space is {space} already, as with mixed instances; discrete actions need separate prefill and "
            "decode instances, so leave them out here"
        )
    if not isinstance(space, spaces.MultiDiscrete) or space.shape != (2,):
        raise ValueError(f"the action space is {space}; discrete actions need MultiDiscrete([P, D])")
    prefills, decodes = space.nvec.tolist()
    return prefills, decodes


def of_pairs(masks: npt.NDArray[Any], prefills: int) -> npt.NDArray[Any]:
    """Masks of pairs from those of their parts.

    Args:
        masks: (…, P + D) bool or int8.
        prefills: P.

    Returns:
        (…, P·D) of the same type; a pair is allowed where both parts are.
    """
    pairs = masks[..., :prefills, None] & masks[..., None, prefills:]
    return np.asarray(pairs.reshape(*masks.shape[:-1], -1))
