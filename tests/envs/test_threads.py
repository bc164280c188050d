"""Environments stepped by several threads: the same bits, the same refusals."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

import disaggroute
from disaggroute.envs.crew import Crew

from .environments import ARGUMENTS, SHORT

SETTINGS = ("as it comes", "aggregated, padded, failing", "kills reroute")


def made(num_envs: int, threads: int, **arguments: Any) -> Any:
    return gym.make_vec(disaggroute.ENVIRONMENT, num_envs, threads=threads, **arguments)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("threads", [2, 3, 9])
def test_what_comes_out_does_not_depend_on_their_number(setting: str, mode: str, threads: int) -> None:
    one, many = (made(5, n, autoreset_mode=mode, **ARGUMENTS[setting]) for n in (1, threads))
    rng = np.random.default_rng(0)
    assert data_equivalence(one.reset(seed=3), many.reset(seed=3), exact=True)
    sizes = np.atleast_1d(getattr(one.single_action_space, "nvec", getattr(one.single_action_space, "n", None)))
    ended = np.zeros(5, np.bool_)
    for _ in range(150):
        parts = np.split(one.action_masks(), np.cumsum(sizes)[:-1], axis=1)
        columns = [np.argmax(rng.random(part.shape) * part, axis=1) for part in parts]
        actions = np.stack(columns, axis=1) if len(sizes) > 1 else columns[0]
        first, second = one.step(actions), many.step(actions)
        assert data_equivalence(first, second, exact=True)
        ended |= first[2]
    assert ended.any()
    one.close()
    many.close()


def test_a_bad_action_changes_nothing_in_any_thread() -> None:
    env = made(6, 3, **SHORT)
    env.reset(seed=0)
    actions = np.zeros((6, 2), np.int64)
    actions[4, 1] = 99
    with pytest.raises(ValueError, match="action of environment 4: decode instance is 99"):
        env.step(actions)
    twin = made(6, 1, **SHORT)
    twin.reset(seed=0)
    actions[4, 1] = 0
    assert data_equivalence(env.step(actions), twin.step(actions), exact=True)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, 1_025])
def test_a_bad_number_is_refused(threads: Any) -> None:
    with pytest.raises(ValueError, match=r"threads is .*; it must be an integer from 1 to 1024"):
        made(2, threads, **SHORT)


def test_spec_and_copies_keep_the_number() -> None:
    env = made(4, 2, autoreset_mode=AutoresetMode.SAME_STEP, **SHORT)
    assert gym.make_vec(type(env.spec).from_json(env.spec.to_json()))._episodes.threads == 2  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(env._episodes)).threads == 2


def test_the_threads_end_with_the_environment() -> None:
    def steppers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "disaggroute-step"}

    others = steppers()  # of environments that other tests have left to the garbage collector
    env = made(4, 4, **SHORT)
    env.reset(seed=0)
    mine = steppers() - others
    assert len(mine) == 3
    env.close()
    for thread in mine:
        thread.join(10)
    assert not any(thread.is_alive() for thread in mine)


def test_an_error_in_a_piece_is_told_when_all_have_ended() -> None:
    done: list[int] = []
    gate = threading.Event()

    def part(address: int, first: int, end: int) -> int:
        if first == 0:
            gate.wait(10)
            done.append(first)
            return 1
        gate.set()
        raise ValueError(f"{address} {first} {end}")

    crew = Crew(2)
    with pytest.raises(ValueError, match="7 5 10"):
        crew.run(part, 7, 10)
    assert done == [0]
    assert crew.run(lambda address, first, end: end - first, 0, 10) == 10
    crew.close()
