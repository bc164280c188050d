"""A policy against simple rules: how often they choose alike, decision by decision, with the same to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .recording import Recording

RULES = (
    "least-ttft(decode=min-tpot)",
    "size-interval",
    "least-loaded",
    "marginal-cost",
    "best-fit",
    "length-threshold",
    "round-robin",
    "random",
)
"""Rules that every policy is compared with; `random` shows what chance does."""


@dataclass(frozen=True)
class Agreement:
    """A rule beside a policy.

    Attributes:
        rule: the rule.
        shares: by pool, share of the decisions in which both name the same instance.
        both: share of those in which they do so in every pool.
        decisions: how many.
    """

    rule: str
    shares: dict[str, float]
    both: float
    decisions: int


def agreements(recordings: Sequence[Recording], pools: Sequence[str]) -> list[Agreement]:
    """Each rule that was asked beside a policy, over all its runs.

    Args:
        recordings: of one policy.
        pools: prefill and decode, or mixed.
    """
    found = []
    for rule in recordings[0].rules:
        same = np.concatenate([each.chosen == each.rules[rule] for each in recordings])
        columns = {pool: same[:, 0 if pool == "prefill" else 1] for pool in pools}
        shares = {pool: float(column.mean()) for pool, column in columns.items()}
        found.append(Agreement(rule, shares, float(same.all(axis=1).mean()), len(same)))
    return found
