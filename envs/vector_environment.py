"""`DisaggRoute-v0` as a native vector environment: one compiled call steps all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from pydantic import BaseModel

from . import spaces
from .cluster import PS_PER_S
from .environment import TRAINING_SEEDS, DisaggRouteEnv, Info, Observation
from .environment_backends import SIMULATOR
from .environment_backends import check as check_backend
from .environment_config import DEFAULT, EnvironmentConfig
from .environment_spec import JsonSpec
from .episodes import Episodes, Told
from .simulator import stepping as W
from .streams import checked_seed

if TYPE_CHECKING:
    from .admission import Admission

T = TypeVar("T")
Bools = npt.NDArray[np.bool_]
Rewards = npt.NDArray[np.float64]
Objects = npt.NDArray[np.object_]

MODES = ", ".join(mode.value for mode in AutoresetMode)


class DisaggRouteVectorEnv(JsonSpec, gym.vector.VectorEnv[Observation, npt.NDArray[np.int64], npt.NDArray[Any]]):
    """Many environments in one, each the same as a `DisaggRouteEnv`, bit for bit.

    `gym.make_vec("DisaggRoute-v0", num_envs=256, config="mixed-bursty")` makes one. Observations, actions and infos
    are those of `gymnasium.vector.SyncVectorEnv` over as many single environments.

    Args:
        num_envs: how many.
        config: as for the single environment.
        autoreset_mode: NextStep (default), SameStep or Disabled, as Gymnasium defines them.
        render_mode: None; a single environment can be rendered.
        threads: that step the environments at the same time. What comes out does not depend on it; it pays with
            about a hundred environments or more, and cores that nobody else wants.
        backend: simulator; a live cluster plays one episode at a time (`gym.make`).
        **overrides: fields of the configuration.

    Raises:
        ValueError: a bad configuration, number or mode.
    """

    def __init__(
        self,
        num_envs: int = 1,
        config: str | Path | Mapping[str, Any] | BaseModel = DEFAULT,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        threads: int = 1,
        backend: str = SIMULATOR,
        **overrides: Any,
    ) -> None:
        check_backend(backend)
        if backend != SIMULATOR:
            raise ValueError(
                f"backend is {backend}; many environments at a time need the simulator, and gym.make makes a live one"
            )
        if render_mode is not None:
            raise ValueError(f"render_mode is {render_mode!r}; a vector environment is not rendered, a single one is")
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            raise ValueError(f"autoreset_mode is {autoreset_mode!r}; allowed are {MODES}") from None
        self.config = EnvironmentConfig.load(config, **overrides)
        self._episodes = episodes = Episodes(self.config, num_envs, threads)
        self.num_envs = int(num_envs)
        self.metadata = DisaggRouteEnv.metadata | {"autoreset_mode": self.autoreset_mode}
        rows, aggregated = (episodes.prefill_rows, episodes.decode_rows), episodes.aggregated
        self.single_observation_space = spaces.observation_space(*rows, aggregated=aggregated)
        self.single_action_space = spaces.action_space(*rows, aggregated=aggregated)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._action_shape = self.action_space.shape
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._begun = np.zeros(num_envs, np.bool_)
        self._all_begun = False
        self._beginning: list[int] = []
        self._nobody = np.zeros(num_envs, np.bool_)
        self._done = self._nobody
        self._all = np.ones(num_envs, np.bool_)
        self._masks: Objects | None = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begins episodes.

        Args:
            seed: an int s (environment i gets s + i), one per environment, or None: drawn from the tuning seeds.
            options: `reset_mask`, (num_envs,) bool: which environments begin anew; by default all.

        Raises:
            ValueError: bad seeds or a wrong number of them, an unknown option, a bad mask, or a trace without a request
                for the agent.
        """
        seeds = self._checked_seeds(seed)
        chosen = self._reset_mask(options)
        self._episodes.renew()
        for i in map(int, np.flatnonzero(chosen)):
            self._begin(i, seeds[i])
        self._run()
        self._done = self._done & ~chosen
        return self._episodes.observations(), self._info(chosen, self._episodes.told())

    def _checked_seeds(self, seed: Any) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, str) or not isinstance(seed, Sequence | np.ndarray) or getattr(seed, "ndim", 1) != 1:
            first = checked_seed(seed)
            return [checked_seed(first + i) for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"seed has {len(seed)} entries; it must have {self.num_envs}, one per environment")
        return [None if each is None else checked_seed(each) for each in seed]

    def _reset_mask(self, options: dict[str, Any] | None) -> Bools:
        if not options:
            return self._all
        if not isinstance(options, dict) or set(options) != {"reset_mask"}:
            raise ValueError(f"options is {options!r}; allowed is {{'reset_mask': …}}")
        mask = options["reset_mask"]
        fits = isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)
        if not (fits and mask.any()):
            raise ValueError(
                f"reset_mask is {mask!r}; it must be a bool array of shape ({self.num_envs},) with a True in it"
            )
        chosen: Bools = mask
        return chosen

    def step(self, actions: Any) -> tuple[Observation, Rewards, Bools, Bools, Info]:
        """Routes one request in every environment.

        Args:
            actions: (num_envs, 2) prefill and decode indices, or (num_envs,) indices of mixed instances.

        Raises:
            ResetNeeded: an environment was never reset or, with autoreset disabled, has ended.
            ValueError: bad actions; nothing was done.
        """
        episodes, ended = self._episodes, self._done
        if not (self._all_begun or self._begun.all()):
            raise ResetNeeded(f"environment {int(np.argmin(self._begun))} has not begun; call reset() before step()")
        resets = 0 if ended is self._nobody else np.count_nonzero(ended)
        if resets and self.autoreset_mode is not AutoresetMode.NEXT_STEP:
            raise ResetNeeded(
                f"environment {int(np.argmax(ended))} has ended; autoreset is disabled, so reset it with "
                "options={'reset_mask': …}"
            )
        self._take(actions)
        episodes.send_all()
        if resets:
            episodes.refuse_bad_actions()  # before other episodes begin, so that nothing is done
        episodes.renew()
        if resets:
            for i in np.flatnonzero(ended):
                self._begin(int(i), None)
        self._run()
        told = episodes.told()
        rewards, done = episodes.rewards(), told[-1]
        if resets:
            rewards[ended] = 0.0
        infos: Info = {}
        self._done = self._nobody
        if np.count_nonzero(done):
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                # what the next episodes begin with takes the place of what is told
                rewards, done = rewards.copy(), done.copy()
            else:
                self._done = done.copy()
            infos = self._end(done)
        truncated = np.zeros(self.num_envs, np.bool_)
        return episodes.observations(), rewards, done, truncated, infos | self._info(self._all, told)

    def _end(self, done: Bools) -> Info:
        """Ends episodes; in mode SameStep others begin. Returns what the infos say of the ends."""
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return {"outcome": _marked(self._episodes.all_totals(done), done), "_outcome": done.copy()}
        infos: Info = {}
        for i in map(int, np.flatnonzero(done)):
            outcome = {"outcome": self._episodes.totals(i)}
            final = {key: value[i].copy() for key, value in self._episodes.observations().items()}
            infos = self._add_info(infos, {"final_obs": final, "final_info": self._single_info(i) | outcome}, i)
            self._begin(i, None)
        self._run()
        return infos

    def _take(self, actions: Any) -> None:
        shape = self._action_shape
        try:
            taken = np.asarray(actions)
        except ValueError:  # rows of different lengths
            raise ValueError(f"actions are {actions!r}; they must be integers of shape {shape}") from None
        if taken.shape != shape or taken.dtype.kind not in "iu":
            raise ValueError(
                f"actions have shape {taken.shape} and dtype {taken.dtype}; they must be integers of shape {shape}"
            )
        self._episodes.actions[:] = taken if len(shape) == 2 else taken[:, None]

    def _begin(self, i: int, seed: int | None) -> None:
        if seed is not None:
            self._generators[i] = seeding.np_random(seed)[0]
        generator = self._generators[i]
        if generator is None:
            generator = self._generators[i] = seeding.np_random()[0]
        self._all_begun = self._begun[i] = False
        self._beginning.append(i)
        self._episodes.begin(i, int(generator.integers(TRAINING_SEEDS)) if seed is None else seed)

    def _run(self) -> None:
        if not self._beginning:
            self._episodes.run()
            return
        beginning, self._beginning = self._beginning, []
        self._episodes.run()
        for i in beginning:
            self._episodes.check_begun(i)
            self._begun[i] = True
        self._all_begun = bool(self._begun.all())

    def close_extras(self, **_: Any) -> None:
        """Ends the threads; part of `close`."""
        self._episodes.close()

    def at_admission(self, i: int, look: Callable[[Admission], T]) -> T:
        """Shows the admission that awaits a decision in environment i, as `DisaggRouteEnv.at_admission` does.

        Raises:
            RuntimeError: no request awaits a decision there.
        """
        return look(self._episodes.simulator(i).admission())

    def action_masks(self) -> Bools:
        """(num_envs, P + D) or (num_envs, M) which indices of the action's parts are allowed."""
        episodes = self._episodes
        parts = [episodes.decode_mask] if episodes.aggregated else [episodes.prefill_mask, episodes.decode_mask]
        return np.concatenate(parts, axis=1).astype(np.bool_)

    def _info(self, chosen: Bools, told: Told) -> Info:
        """The infos of these environments, as `SyncVectorEnv` gathers them."""
        episodes, (dt, now, request, _) = self._episodes, told
        marks = chosen.copy()
        infos: Info = {
            "dt": dt,
            "now": now,
            "request": request,
            "missed": episodes.all_missed_ids(),
            "action_mask": self._action_mask(),
            "trace_seed": episodes.seeds.copy(),
            "_dt": marks,
            "_now": marks,
            "_request": marks,
            "_missed": marks,
            "_action_mask": marks,
            "_trace_seed": marks,
        }
        if chosen is not self._all:
            rest = ~chosen
            for value in infos.values():
                if value is not marks:
                    value[rest] = None if value.dtype == np.object_ else 0
        return infos

    def _single_info(self, i: int) -> Info:
        desk, episodes = self._episodes.desks[i], self._episodes
        return {
            "dt": float(desk[W.W_DT] / PS_PER_S),
            "now": float(desk[W.W_LAST] / PS_PER_S),
            "request": int(desk[W.W_REQUEST]),
            "missed": episodes.missed_ids(i, int(desk[W.W_MISSED])),
            "action_mask": episodes.masks(i),
            "trace_seed": int(episodes.seeds[i]),
        }

    def _action_mask(self) -> npt.NDArray[Any]:
        """Per environment a tuple of one array per pool; of mixed instances (num_envs, M)."""
        episodes = self._episodes
        if episodes.aggregated:
            return episodes.decode_mask.copy()
        if self._masks is None or episodes.instances_change:
            self._masks = np.empty(self.num_envs, np.object_)
            shared = None if episodes.instances_change else episodes.masks(0)
            for i in range(self.num_envs):
                self._masks[i] = shared or episodes.masks(i)
        return self._masks.copy()


def _marked(told: dict[str, npt.NDArray[Any]], which: Bools) -> Info:
    """What is told of some environments, and of which, as `SyncVectorEnv` gathers it."""
    infos: Info = {}
    for key, column in told.items():
        infos |= {key: column, f"_{key}": which.copy()}
    return infos
