"""Credit: misses are paid where they were caused, without the luck of the trace, discounted by time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.training.learning import credit

HORIZON, DECAY = 2.0, 0.9


def test_a_miss_is_paid_where_its_request_was_routed() -> None:
    rewards = np.zeros((4, 2))
    rewards[3, 1] = -2.0  # requests 7 and 8 of episode 1 become certain misses long after they were routed
    routed_at = np.full((2, 9), -1)
    routed_at[1, 7], routed_at[1, 8] = 0, 2
    paid = credit.attributed(rewards, np.array([[1, 7], [1, 8]]), routed_at)
    assert paid.tolist() == [[0, -1], [0, 0], [0, -1], [0, 0]]


def test_a_share_stays_where_the_miss_became_certain() -> None:
    rewards = np.array([[0.0], [-1.0]])
    paid = credit.attributed(rewards, np.array([[0, 3]]), np.array([[-1, -1, -1, 0]]), 0.75)
    assert paid.tolist() == [[-0.75], [-0.25]]


def test_two_misses_of_one_step_add_up() -> None:
    paid = credit.attributed(np.zeros((1, 1)), np.array([[0, 0], [0, 0]]), np.array([[0]]))
    assert paid.tolist() == [[-2.0]]


def test_a_request_that_nobody_here_routed_is_paid_by_nobody() -> None:
    assert not credit.attributed(np.zeros((2, 1)), np.array([[0, 0]]), np.array([[-1]])).any()


def test_no_miss_changes_nothing() -> None:
    rewards = np.array([[0.0, -1.0]])
    assert credit.attributed(rewards, np.zeros((0, 2), np.int64), np.zeros((2, 1), np.int64), 0.0).tolist() == [[0, -1]]


def test_what_all_of_a_group_pay_is_nobodys_merit() -> None:
    rewards = np.array([[-1.0, -1.0, -1.0, 0.0]])
    told = credit.relative(rewards, np.ones((1, 4), bool), group=2)
    assert told.tolist() == [[0.0, 0.0, -0.5, 0.5]]


def test_only_the_living_are_compared() -> None:
    alive = np.array([[True, True, True], [True, False, True]])
    told = credit.relative(np.array([[0.0, 0.0, -3.0], [-1.0, -9.0, 0.0]]), alive, group=3)
    assert told.tolist() == [[1.0, 1.0, -2.0], [-0.5, 0.0, 0.5]]


def test_a_group_of_one_keeps_its_rewards() -> None:
    alive = np.array([[True, False]])
    assert credit.relative(np.array([[-1.0, -1.0]]), alive, group=1).tolist() == [[-1.0, 0.0]]


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), st.integers(0, 1000))
def test_relative_rewards_of_a_step_sum_to_zero_in_each_group(steps: int, groups: int, group: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    alive = rng.random((steps, groups * group)) < 0.7
    told = credit.relative(rng.normal(size=alive.shape), alive, group)
    if group > 1:
        assert np.allclose(told.reshape(steps, groups, group).sum(axis=2), 0.0)
    assert not told[~alive].any()


def told(rewards: list[float], values: list[float], dt: list[float], decay: float) -> list[float]:
    column = np.array([rewards, values, dt])[:, :, None]
    found = credit.advantages(
        column[0], column[1], column[2], np.ones((len(rewards), 1), bool), horizon_s=HORIZON, trace_decay=decay
    )
    return found[:, 0].tolist()


def test_the_future_is_discounted_by_simulated_time_and_not_by_steps() -> None:
    quick = told([0, 0, -1], [0, 0, 0], [0.1, 0.1, 5], 1.0)
    slow = told([0, 0, -1], [0, 0, 0], [1.0, 1.0, 5], 1.0)
    assert quick[0] == pytest.approx(-np.exp(-0.2 / HORIZON))
    assert slow[0] == pytest.approx(-np.exp(-2.0 / HORIZON))


def test_with_decay_0_an_advantage_looks_one_step_ahead() -> None:
    assert told([-1, 0], [0.5, 0.25], [1.0, 1.0], 0.0) == pytest.approx(
        [-1 + np.exp(-1 / HORIZON) * 0.25 - 0.5, -0.25]
    )


def test_nothing_comes_after_the_end_of_an_episode() -> None:
    alive = np.array([[True, True], [False, True]])
    found = credit.advantages(
        np.array([[0.0, 0.0], [-9.0, -1.0]]), np.zeros((2, 2)), np.ones((2, 2)), alive, horizon_s=HORIZON, trace_decay=1
    )
    assert found[0, 0] == 0.0
    assert found[1, 0] == 0.0
    assert found[0, 1] == pytest.approx(-np.exp(-1 / HORIZON))


@given(st.integers(1, 8), st.integers(0, 1000))
def test_advantages_are_the_sum_of_all_discounted_errors(steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards, values, dt = rng.normal(size=(3, steps, 1))
    dt = np.abs(dt)
    found = credit.advantages(
        rewards, values, dt, np.ones((steps, 1), bool), horizon_s=HORIZON, trace_decay=DECAY
    )
    gamma = np.exp(-dt[:, 0] / HORIZON)
    after = np.append(values[1:, 0], 0.0)
    errors = rewards[:, 0] + gamma * after - values[:, 0]
    for t in range(steps):
        weights = np.cumprod(np.append(1.0, DECAY * gamma[t : steps - 1]))
        assert found[t, 0] == pytest.approx(float(weights @ errors[t:]))
