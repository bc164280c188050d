"""Credit: which decision is paid for which miss, and by how much better it was than what others did at that time.

A miss becomes certain long after the decision that caused it: a first token that is late shows after the TTFT target,
tokens that are too slow show when the answer ends. Three things are meant to make the signal clear; docs/learning.md
has what was measured:

- the miss of a request is paid where that request was routed (`attributed`);
- episodes of a group meet the same requests, so that what a miss pays is compared with what the same request paid in
  the others: the luck of the trace cancels out (`relative`);
- decisions come at irregular times, so the future is discounted by simulated time (`advantages`).

Arrays have axes (steps, episodes). Episodes end after different numbers of steps; `alive` is False after the end.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


def attributed(
    rewards: Floats, misses: Ints, routed_at: Ints, share: float = 1.0
) -> Floats:
    """Rewards with misses paid where the missed requests were routed.

    Args:
        rewards: (T, E) as the environment pays them under `slo-miss`, when a miss is certain.
        misses: (n, 2) pairs of an episode and a request that was missed in it.
        routed_at: (E, requests) step at which each request was routed; −1: by nobody whom this concerns.
        share: of a miss that is paid at its request's decision, 0 to 1; the rest stays where it was.

    Returns:
        (T, E) rewards.
    """
    paid = (1.0 - share) * rewards
    steps = routed_at[misses[:, 0], misses[:, 1]]
    known = steps >= 0
    np.add.at(paid, (steps[known], misses[known, 0]), -share)
    return paid


def relative(rewards: Floats, alive: Bools, group: int) -> Floats:
    """Rewards minus their mean over the group's episodes that are alive at that step.

    Episodes of a group meet the same requests in the same order, so step t is the same request in all of them. What is
    taken away does not depend on an episode's own action but by its share in the mean, which scales all advantages by
    (group − 1) ÷ group. Source: Mao et al., "Variance reduction for reinforcement learning in input-driven
    environments", ICLR 2019, arXiv 1807.02264.

    Args:
        rewards: (T, E); episodes k·group to (k + 1)·group − 1 make a group.
        alive: (T, E).
        group: episodes per group; 1: nothing is taken away.

    Returns:
        (T, E) rewards, 0 where an episode is not alive.
    """
    if group == 1:
        return np.where(alive, rewards, 0.0)
    steps, episodes = rewards.shape
    split = (steps, episodes // group, group)
    living = alive.reshape(split)
    of_group = np.where(living, rewards.reshape(split), 0.0)
    mean = of_group.sum(axis=2, keepdims=True) / np.maximum(living.sum(axis=2, keepdims=True), 1)
    return np.where(living, of_group - mean, 0.0).reshape(steps, episodes)


def advantages(
    rewards: Floats, values: Floats, dt: Floats, alive: Bools, *, horizon_s: float, trace_decay: float
) -> Floats:
    """Generalised advantage estimates over irregular steps, discounted by exp(−dt ÷ horizon).

        δ(t) = r(t) + γ(t)·V(t + 1) − V(t),   A(t) = δ(t) + γ(t)·λ·A(t + 1),   γ(t) = exp(−dt(t) ÷ horizon)

    After the last step of an episode V and A are 0. Source: Schulman et al., "High-dimensional continuous control
    using generalized advantage estimation", ICLR 2016, arXiv 1506.02438, with a γ for each step.

    Args:
        rewards: (T, E).
        values: (T, E) V of the observation at each step.
        dt: (T, E) simulated time from each decision to the next one, s.
        alive: (T, E).
        horizon_s: after which time a reward counts 1/e, s.
        trace_decay: λ, 0 to 1.

    Returns:
        (T, E), 0 where an episode is not alive.
    """
    gamma = np.exp(-dt / horizon_s)
    found = np.zeros_like(rewards)
    value, advantage = np.zeros(rewards.shape[1]), np.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + gamma[t] * value - values[t]
        found[t] = advantage = np.where(alive[t], delta + gamma[t] * trace_decay * advantage, 0.0)
        value = np.where(alive[t], values[t], 0.0)
    return found
