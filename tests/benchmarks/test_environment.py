"""The benchmark of the single environment runs whole episodes, with their resets."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import gymnasium as gym
import pytest

import disaggroute
from disaggroute.benchmarks.environment import measure, stretch
from disaggroute.benchmarks.vector import CONFIG

TINY = {"duration_s": 3, "warmup_s": 1}


def test_arrays_and_pairs_of_integers_are_both_measured_in_the_same_episodes() -> None:
    arrays, pairs = measure(episodes=2, repeats=2, overrides=TINY)
    assert (arrays.name, arrays.unit, arrays.repeats) == ("env", "steps/s", 2)
    assert (pairs.name, pairs.unit, pairs.repeats) == ("env/tuple", "steps/s", 2)
    assert 0 < arrays.min <= arrays.value <= arrays.max
    assert arrays.details["requests"] == pairs.details["requests"] > 0
    assert arrays.details["goodput"] == pairs.details["goodput"]


def test_a_stretch_counts_the_steps_of_its_episodes() -> None:
    env: Any = gym.make(disaggroute.ENVIRONMENT, config=CONFIG, **TINY)
    resets: list[int] = []
    steps: list[bool] = []

    class Watched:
        def reset(self) -> Any:
            resets.append(len(steps))
            return env.reset(seed=len(resets))

        def step(self, action: Any) -> Any:
            out = env.step(action)
            steps.append(out[2])
            return out

    taken = stretch(Watched(), repeat((1, 2)), 3)
    assert len(resets) == sum(steps) == 3 and steps[-1]
    assert taken.decisions == len(steps)


@pytest.mark.parametrize("field", ["episodes", "repeats"])
def test_a_count_below_one_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0; it must be at least 1"):
        measure(**{field: 0})
