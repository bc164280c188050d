"""Whole episodes of many environments at once, as what a learner needs of them.

Environments come in groups: all of a group meet the same requests, so their fates can be compared request by request.
A whole episode is played at a time, since only its end tells of every request whether it was missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...envs.setting import Setting
from ..sb3_vec_env import Sb3VecEnv, make_sb3
from .config import TrainingScenario, TrainingSeeds

Array = npt.NDArray[Any]
Observations = Mapping[str, npt.NDArray[np.float32]]

Act = Callable[[Observations, npt.NDArray[np.bool_]], tuple[Array, Mapping[str, Array]]]
"""Chooses actions (E, …) for observations, told which episodes (E,) have not ended, and what else is to be kept of that
choice, by name, (E, …) each. What it chooses for an episode that has ended means nothing, but must be allowed."""


@dataclass(frozen=True, eq=False)
class Episodes:
    """E episodes of at most T steps.

    Decisions are numbered step by step, within a step by episode, without those of environments that had ended: so
    arrays of shape (n, …) fit `alive`, as `alive`'s True places are counted row by row.

    Attributes:
        alive: (T, E) whether the episode had a decision at that step.
        observations: by name, (n, …).
        actions: (n, …).
        kept: what the player kept, by name, (n, …).
        rewards: (T, E) as the environment paid them.
        dt: (T, E) simulated time to the next decision, s.
        requests: (T, E) index in the trace of the request that was routed.
        misses: (m, 2) pairs of an episode and a request that was missed in it.
    """

    alive: npt.NDArray[np.bool_]
    observations: Observations
    actions: Array
    kept: Mapping[str, Array]
    rewards: npt.NDArray[np.float64]
    dt: npt.NDArray[np.float64]
    requests: npt.NDArray[np.int64]
    misses: npt.NDArray[np.int64]

    @cached_property
    def routed_at(self) -> npt.NDArray[np.int64]:
        """(E, requests) step at which each request was routed; −1: before the first decision, or never."""
        last = max(self.requests.max(initial=0), self.misses[:, 1].max(initial=0))
        found = np.full((self.alive.shape[1], int(last) + 1), -1, np.int64)
        steps, episodes = np.nonzero(self.alive)
        found[episodes, self.requests[steps, episodes]] = steps
        return found

    @property
    def decisions(self) -> int:
        """How many decisions there are, n."""
        return int(self.alive.sum())

    @property
    def goodput(self) -> float:
        """Share of the requests routed that were not missed."""
        return 1.0 - len(self.misses) / self.decisions

    def spread(self, values: Array) -> npt.NDArray[np.float64]:
        """(T, E) of values (n,), 0 where an episode was not alive."""
        found = np.zeros(self.alive.shape)
        found[self.alive] = values
        return found


def pool_sizes(scenarios: Sequence[TrainingScenario]) -> tuple[int, int]:
    """Instances of the largest prefill and of the largest decode pool.

    Raises:
        ValueError: mixed instances: a pair is what these agents choose.
    """
    sizes = []
    for scenario in scenarios:
        setting = Setting.of(scenario.plain)
        if setting.cluster.aggregated:
            raise ValueError(f"{scenario.label}: all instances are mixed; this method needs prefill and decode pools")
        prefills = setting.constants.prefills
        sizes.append((prefills, len(setting.cluster.instances) - prefills))
    return max(prefills for prefills, _ in sizes), max(decodes for _, decodes in sizes)


def environments(
    scenarios: Sequence[TrainingScenario], count: int, *, discrete: bool = False
) -> tuple[Sb3VecEnv, ...]:
    """Environments of each scenario, all with the rows of the largest pools, so that one agent fits them all.

    Args:
        scenarios: their window is the length of an episode.
        count: environments of each.
        discrete: one number as action.

    Raises:
        ValueError: mixed instances.
    """
    rows = pool_sizes(scenarios)
    return tuple(
        make_sb3(scenario.plain.model_dump(), count, discrete=discrete, pad_to=rows) for scenario in scenarios
    )


def whose_turn(weights: Sequence[float], update: int) -> int:
    """Which scenario an update plays, so that each has its share of the updates as early as may be."""
    shares = np.array(weights, np.float64) / sum(weights)
    turns = np.zeros(len(shares))
    for k in range(update + 1):
        chosen = int(np.argmax(shares * (k + 1) - turns))
        turns[chosen] += 1
    return chosen


def traces(seeds: TrainingSeeds, training_seed: int, update: int, count: int) -> list[int]:
    """Seeds of an update's traces: all differ, and other training seeds and updates have others."""
    rng = np.random.default_rng([training_seed, update])
    size = seeds.last - seeds.first + 1
    return [seeds.first + int(k) for k in rng.choice(size, count, replace=count > size)]


def play(env: Sb3VecEnv, seeds: Sequence[int], act: Act) -> Episodes:
    """Plays one episode in every environment, to its end.

    Args:
        env: environments whose reward is `slo-miss`.
        seeds: (E,) of the traces.
        act: who decides.

    Raises:
        ValueError: what the environments refuse.
    """
    env.seed_each(list(seeds))
    shown: Any = env.reset()
    alive = np.ones(env.num_envs, np.bool_)
    rows: dict[str, list[Array]] = {name: [] for name in ("alive", "rewards", "dt", "requests", "actions")}
    observations: dict[str, list[Array]] = {name: [] for name in shown}
    kept: dict[str, list[Array]] = {}
    misses: list[tuple[int, int]] = []
    while alive.any():
        actions, more = act(shown, alive)
        for name, parts in observations.items():
            parts.append(shown[name][alive])
        for name, values in more.items():
            kept.setdefault(name, []).append(values[alive])
        rows["actions"].append(actions[alive])
        rows["alive"].append(alive)
        rows["requests"].append(env.told["request"])
        env.step_async(actions)
        shown, rewards, done, _ = env.step_wait()
        dt, missed = _of_the_step(env.told, done)
        rows["rewards"].append(np.where(alive, rewards, 0.0))
        rows["dt"].append(dt)
        misses += [(int(i), int(request)) for i in np.flatnonzero(alive) for request in missed[i]]
        alive = alive & ~done
    return Episodes(
        alive=np.array(rows["alive"]),
        observations={name: np.concatenate(parts) for name, parts in observations.items()},
        actions=np.concatenate(rows["actions"]),
        kept={name: np.concatenate(parts) for name, parts in kept.items()},
        rewards=np.array(rows["rewards"]),
        dt=np.array(rows["dt"]),
        requests=np.array(rows["requests"]),
        misses=np.array(misses, np.int64).reshape(-1, 2),
    )


def _of_the_step(told: Mapping[str, Any], done: Array) -> tuple[Array, Array]:
    """`dt` and `missed` of the step that was made: where an episode ended, another one has begun since."""
    dt, missed = told["dt"], told["missed"]
    if done.any():
        dt, missed = dt.copy(), missed.copy()
        for i in np.flatnonzero(done):
            dt[i], missed[i] = told["final_info"]["dt"][i], told["final_info"]["missed"][i]
    return dt, missed
