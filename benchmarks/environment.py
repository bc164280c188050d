"""How many steps per second a Python loop takes in the single environment."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from time import perf_counter_ns, thread_time_ns
from typing import Any

import gymnasium as gym
import numpy as np

from .. import ENVIRONMENT
from .drive import Say
from .measurement import Result, at_least, pinned
from .vector import CONFIG, DRAWN, EPISODES, Stretch

UNIT = "steps/s"


def measure(
    *,
    episodes: int = EPISODES,
    repeats: int = 5,
    seed: int = 0,
    say: Say = lambda _: None,
    overrides: Mapping[str, Any] | None = None,
) -> list[Result]:
    """Steps per second of `gym.make` with its default wrappers, resets included, on one core.

    Args:
        episodes: per repeat.
        repeats: how often each number is measured, after an episode that is not counted.
        seed: of the first trace and of the actions.
        say: told what is being done.
        overrides: fields of the configuration that are replaced.

    Returns:
        `env`, actions as NumPy arrays, as `action_space.sample()` and agents give them, and `env/tuple`, actions as
        pairs of Python integers; steps/s. Both take the same actions in the same episodes.

    Raises:
        ValueError: a count is below 1.
    """
    at_least("episodes", episodes)
    at_least("repeats", repeats)
    env: Any = gym.make(ENVIRONMENT, config=CONFIG, **dict(overrides or {}))
    rows = np.random.default_rng(seed).integers(0, env.action_space.nvec, (DRAWN, 2))
    kinds: dict[str, Sequence[Any]] = {"env": list(rows), "env/tuple": [tuple(row) for row in rows.tolist()]}
    results = []
    with pinned():
        for name, actions in kinds.items():
            say(name)
            again = cycle(actions)
            env.reset(seed=seed)
            stretch(env, again, 1)
            taken = [stretch(env, again, episodes) for _ in range(repeats)]
            results.append(
                Result.of(
                    name,
                    UNIT,
                    [each.decisions / each.seconds for each in taken],
                    requests=round(statistics.median(each.decisions for each in taken)),
                    goodput=statistics.mean(each.goodput for each in taken),
                    core_share=statistics.median(each.busy / each.seconds for each in taken),
                )
            )
    env.close()
    return results


def stretch(env: Any, actions: Iterator[Any], episodes: int) -> Stretch:
    """Runs whole episodes, each with its reset, as a user's loop would."""
    steps = 0
    goodput = []
    started, before = perf_counter_ns(), thread_time_ns()
    for _ in range(episodes):
        env.reset()
        ended = False
        while not ended:
            _, _, ended, _, info = env.step(next(actions))
            steps += 1
        goodput.append(info["outcome"]["goodput"])
    stopped, after = perf_counter_ns(), thread_time_ns()
    return Stretch((stopped - started) / 1e9, (after - before) / 1e9, steps, statistics.mean(goodput))
