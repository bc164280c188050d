"""How many decisions per second the native vector environment takes, and how that compares with Gymnasium's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from .. import ENVIRONMENT
from ..envs import features
from ..training.executors.process import core_count
from .drive import Say
from .measurement import Result, at_least, pinned

CONFIG = "mixed-bursty-a40"
"""A configuration in which every instance takes requests at any time, so that every action of the space is legal."""

ENVS = (256, 16, 1)
SYNC_ENVS = 16
EPISODES = 16

DRAWN = 1_024
"""Steps for which actions are drawn beforehand; then they come again."""

UNIT = "decisions/s"

Observation = dict[str, npt.NDArray[np.float32]]
Actions = npt.NDArray[np.int64]
Choose = Callable[[Observation], Actions]

QUEUED = [feature.name for feature in features.PREFILL].index("queued")
IN_FLIGHT = [feature.name for feature in features.DECODE].index("in_flight")


class Stretch(NamedTuple):
    """What a timed stretch of steps brought.

    Attributes:
        seconds: it took.
        busy: seconds for which it had the core.
        decisions: requests that were routed. A step in which an environment begins anew routes none there.
        goodput: mean over the episodes that ended.
    """

    seconds: float
    busy: float
    decisions: int
    goodput: float


class Walk:
    """A vector environment that is stepped on and on; episodes that have ended are followed by others.

    Args:
        env: with autoreset in the next step.
        choose: the actions, from the observations.
        seed: of the first reset.
    """

    def __init__(self, env: Any, choose: Choose, seed: int) -> None:
        self.env, self._choose = env, choose
        self._observation: Observation = env.reset(seed=seed)[0]
        self._begins = 0

    def stretch(self, episodes: int) -> Stretch:
        """Steps until so many episodes have ended.

        The next stretch goes on where this one stops, so over the stretches each episode is counted whole, with the
        reset before it.
        """
        env, choose, observation, begins = self.env, self._choose, self._observation, self._begins
        ended = decisions = 0
        goodput: list[npt.NDArray[np.float64]] = []
        started, before = perf_counter_ns(), thread_time_ns()
        while ended < episodes:
            observation, _, done, _, infos = env.step(choose(observation))
            decisions += env.num_envs - begins
            begins = int(np.count_nonzero(done))
            if begins:
                ended += begins
                goodput.append(infos["outcome"]["goodput"][done])
        stopped, after = perf_counter_ns(), thread_time_ns()
        self._observation, self._begins = observation, begins
        return Stretch(
            (stopped - started) / 1e9, (after - before) / 1e9, decisions, float(np.concatenate(goodput).mean())
        )


def drawn(num_envs: int, pools: Sequence[int], seed: int) -> Choose:
    """Uniform actions, drawn beforehand: nothing but the environment is timed.

    Args:
        num_envs: how many environments.
        pools: number of prefill and of decode instances.
        seed: of the draw.
    """
    actions = np.random.default_rng(seed).integers(0, pools, (DRAWN, num_envs, 2))
    rows: list[Actions] = list(actions)
    at = 0

    def choose(_: Observation) -> Actions:
        nonlocal at
        at = (at + 1) % DRAWN
        return rows[at]

    return choose


def least_loaded(observation: Observation) -> Actions:
    """(N, 2) per environment the instances with the fewest requests, as the policy `least-loaded`, by NumPy."""
    prefill = observation["prefill"][:, :, QUEUED].argmin(axis=1)
    decode = observation["decode"][:, :, IN_FLIGHT].argmin(axis=1)
    return np.stack((prefill, decode), axis=1)


def measure(
    *,
    envs: Sequence[int] = ENVS,
    sync_envs: int = SYNC_ENVS,
    episodes: int = EPISODES,
    repeats: int = 5,
    seed: int = 0,
    threads: int | None = None,
    say: Say = lambda _: None,
    overrides: Mapping[str, Any] | None = None,
) -> list[Result]:
    """Decisions per second in whole episodes, autoreset included, on one core, and at last on all.

    Args:
        envs: numbers of environments.
        sync_envs: number of environments for the comparison with `gymnasium.vector.SyncVectorEnv`; 0 leaves it out.
        episodes: that end in a repeat, at least; and at least as many as there are environments.
        repeats: how often each number is measured, after a first time that is not counted.
        seed: of the traces and of the actions.
        threads: of the last measurement, None for one per core; 1 leaves it out.
        say: told what is being done.
        overrides: fields of the configuration that are replaced.

    Returns:
        For each number N `vector/N`, uniform actions drawn beforehand, decisions/s; for the first also
        `vector/N/least-loaded`, actions chosen from the observation, and `vector/N/reset`, ms per environment; and
        `vector/N/threads-T`, where there are T > 1 cores, stepped by as many threads. For
        `sync_envs` `vector/N/sync`, decisions/s, and `vector/N/over-sync`, how many times quicker the native one is.

    Raises:
        ValueError: a count is too small.
    """
    for count in envs:
        at_least("envs", count)
    at_least("sync_envs", sync_envs, 0)
    at_least("episodes", episodes)
    at_least("repeats", repeats)
    replaced = dict(overrides or {})
    results = []

    def made(count: int, mode: str | None = None) -> Any:
        return gym.make_vec(ENVIRONMENT, count, mode, config=CONFIG, **replaced)

    def walk(env: Any, choose: Choose | None = None) -> Walk:
        pools = env.single_action_space.nvec
        return Walk(env, choose or drawn(env.num_envs, pools, seed), seed)

    with pinned():
        for place, count in enumerate(envs):
            env, name = made(count), f"vector/{count}"
            say(name)
            results.append(speed(name, *stretches([walk(env)], max(episodes, count), repeats)))
            if place == 0:
                say(f"{name}/least-loaded, {name}/reset")
                walked = walk(env, least_loaded)
                results.append(speed(f"{name}/least-loaded", *stretches([walked], max(episodes, count), repeats)))
                spent = [milliseconds_to_reset(env, seed) for _ in range(repeats)]
                results.append(Result.of(f"{name}/reset", "ms", spent, envs=count))
            env.close()
        if sync_envs:
            name = f"vector/{sync_envs}"
            say(f"{name}/sync")
            walks = [walk(made(sync_envs)), walk(made(sync_envs, "sync"))]
            native, sync = stretches(walks, max(episodes, sync_envs), repeats)
            results.append(speed(f"{name}/sync", sync))
            # The same episodes, decision by decision, in turns.
            ratios = [theirs.seconds / ours.seconds for ours, theirs in zip(native, sync, strict=True)]
            results.append(Result.of(f"{name}/over-sync", "×", ratios, envs=sync_envs))
            for walked in walks:
                walked.env.close()
    threads = core_count() if threads is None else threads
    if threads > 1:
        name = f"vector/{envs[0]}/threads-{threads}"
        say(name)
        env = gym.make_vec(ENVIRONMENT, envs[0], config=CONFIG, threads=threads, **replaced)
        results.append(speed(name, *stretches([walk(env)], max(episodes, envs[0]), repeats)))
        env.close()
    return results


def stretches(walks: Sequence[Walk], episodes: int, repeats: int) -> list[list[Stretch]]:
    """Per walk its timed stretches, taken in turns after one each that is not counted."""
    for walked in walks:
        walked.stretch(episodes)
    taken = [[walked.stretch(episodes) for walked in walks] for _ in range(repeats)]
    return [list(column) for column in zip(*taken, strict=True)]


def speed(name: str, taken: Sequence[Stretch]) -> Result:
    """Decisions per second of some stretches, with what the clusters were doing."""
    return Result.of(
        name,
        UNIT,
        [each.decisions / each.seconds for each in taken],
        requests=round(statistics.median(each.decisions for each in taken)),
        goodput=statistics.mean(each.goodput for each in taken),
        core_share=statistics.median(each.busy / each.seconds for each in taken),
    )


def milliseconds_to_reset(env: Any, seed: int) -> float:
    """How long a reset of all takes, per environment: the trace, the simulator, the warm start."""
    started = perf_counter_ns()
    env.reset(seed=seed)
    return (perf_counter_ns() - started) / 1e6 / int(env.num_envs)
