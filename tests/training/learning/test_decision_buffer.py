"""The buffer hands every decision of whole episodes to the learner once per pass, with the credit it is due."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from disaggroute.training.learning import credit
from disaggroute.training.learning.decision_buffer import Credit, DecisionBuffer
from disaggroute.training.learning.episodes import Episodes

ALIVE = np.array([[True, True], [True, True], [False, True]])
COUNT = int(ALIVE.sum())
VALUES = np.linspace(0.0, 1.0, COUNT, dtype=np.float32)


def episodes(**kept: Any) -> Episodes:
    """Two episodes with the same requests; the one ends earlier, and misses its first request late."""
    rewards = np.zeros(ALIVE.shape)
    rewards[1, 0] = -1.0
    given = {"log_probs": -VALUES} | kept
    return Episodes(
        alive=ALIVE,
        observations={"request": np.arange(COUNT, dtype=np.float32)[:, None]},
        actions=np.arange(2 * COUNT).reshape(COUNT, 2),
        kept=given,
        rewards=rewards,
        dt=np.ones(ALIVE.shape),
        requests=np.arange(3)[:, None].repeat(2, axis=1),
        misses=np.array([[0, 0]]),
    )


def filled(how: Credit | None = None, **kept: Any) -> DecisionBuffer:
    space = spaces.Dict({"request": spaces.Box(-1, 9, (1,))})
    buffer = DecisionBuffer(2, space, spaces.MultiDiscrete([9, 9]), "cpu", n_envs=2, credit=how or Credit(group=2))
    buffer.fill(episodes(**kept), VALUES)
    return buffer


def test_every_decision_comes_once_with_all_that_belongs_to_it() -> None:
    torch.manual_seed(0)
    batches = list(filled().get(2))
    assert sorted(len(batch.actions) for batch in batches) == [2, 3]
    seen = torch.cat([batch.observations["request"][:, 0] for batch in batches])
    assert sorted(seen.tolist()) == list(range(COUNT))
    actions = torch.cat([batch.actions for batch in batches])
    assert torch.equal(actions[:, 0], 2 * seen), "rows stay together"
    old = torch.cat([batch.old_values for batch in batches])
    assert torch.equal(torch.cat([batch.old_log_prob for batch in batches]), -old)


def test_the_order_is_drawn_anew_in_each_pass() -> None:
    torch.manual_seed(0)
    buffer = filled()
    first, second = (next(iter(buffer.get(100))).observations["request"][:, 0].tolist() for _ in range(2))
    assert sorted(first) == sorted(second)
    assert first != second


def test_the_credit_is_that_of_the_modules_formulas() -> None:
    how = Credit(horizon_s=3.0, trace_decay=0.5, attributed=1.0, group=2)
    told = episodes()
    paid = np.zeros(ALIVE.shape)
    paid[0] = [-0.5, 0.5]  # of the first request's decision, against the other episode's
    expected = credit.advantages(paid, told.spread(VALUES), told.dt, ALIVE, horizon_s=3.0, trace_decay=0.5)[ALIVE]
    buffer = filled(how)
    assert np.allclose(buffer.advantages, expected)
    assert np.allclose(buffer.returns, expected + VALUES)


def test_masks_come_along_where_they_are_kept() -> None:
    masks = np.arange(COUNT)[:, None] > 1
    (batch,) = filled(masks=masks).get()
    assert torch.equal(batch.action_masks[:, 0].bool(), batch.observations["request"][:, 0] > 1)
    assert not hasattr(next(iter(filled().get())), "action_masks")


def test_lessons_take_the_place_of_actions() -> None:
    lessons = np.full((COUNT, 2), 7)
    (batch,) = filled(lessons=lessons).get()
    assert (batch.actions == 7).all()
