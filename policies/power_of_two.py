"""Power of two choices."""

from __future__ import annotations

from .compiled import episode
from .compiled_policy import CompiledPolicy
from .registry import register


@register
class PowerOfTwo(CompiledPolicy):
    """The less loaded of two instances drawn at random, in each pool.

    Two different instances that may be assigned are drawn, each pair equally likely; the one with fewer
    requests in the ledger (counted as in `least-loaded`) is picked, the lower index of two equal ones.
    Formula, with m such instances:

        P(pick = i) = 2·b(i) / (m·(m − 1)),    b(i) = instances that i would beat

    A pool with one instance is not drawn from. Source: Mitzenmacher, "The power of two choices in
    randomized load balancing", IEEE Transactions on Parallel and Distributed Systems 12(10), 2001.
    """

    name = "power-of-two"
    number = episode.POWER_OF_TWO
