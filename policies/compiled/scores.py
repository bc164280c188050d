"""Scoring and picking: each pool gets a vector of costs, and the least open one wins, ties to the lowest index.

Costs are kept as int64: counts as they are, float64 costs by their bits (which order like the floats, being ≥ 0). An
instance that may not be assigned is marked +inf, whose bits are above every count and every finite cost.
"""

from __future__ import annotations

import numpy as np

from ...envs.simulator import lanes as V
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline
from ...envs.simulator.memory import ld
from .randomness import below

CLOSED = 0x7FF0000000000000
"""Bits of +inf."""


@inline
def least_between(costs: int, low: int, high: int) -> int:
    """Index of the smallest cost in [low, high), the lowest of several."""
    found, smallest = low, ld(costs, low)
    for i in range(low + 1, high):
        if ld(costs, i) < smallest:
            found, smallest = i, ld(costs, i)
    return found


@inline
def mask_counts(costs: int, counts: int, marks: int, n: int) -> None:
    """Costs that are counts."""
    for i in range(0, n, L.LANES):
        V.store(costs, i, V.load(counts, i) | V.load(marks, i))


@inline
def open_count(marks: int, n: int) -> int:
    """How many instances may be assigned."""
    count = 0
    for i in range(n):
        count += np.int64(ld(marks, i) == 0)
    return count


@inline
def nth_open(marks: int, n: int, nth: int) -> int:
    """The nth instance (from 0) that may be assigned."""
    for i in range(n):
        if ld(marks, i) == 0:
            if nth == 0:
                return i
            nth -= 1
    return -1


@inline
def any_of(marks: int, n: int, rng: int) -> int:
    """One open instance, each equally likely."""
    return nth_open(marks, n, below(rng, open_count(marks, n)))


@inline
def better_of_two(costs: int, marks: int, n: int, rng: int) -> tuple[int, float]:
    """The cheaper of two different open instances drawn at random, and the probability of that outcome.

    An instance wins with as many of the C(m, 2) pairs as there are open ones that it beats.
    """
    m = open_count(marks, n)
    if m == 1:
        return nth_open(marks, n, 0), 1.0
    first = below(rng, m)
    second = below(rng, m - 1)
    second += np.int64(second >= first)
    a, b = nth_open(marks, n, min(first, second)), nth_open(marks, n, max(first, second))
    winner = b if ld(costs, b) < ld(costs, a) else a
    beaten = 0
    for i in range(n):
        worse = ld(costs, i) > ld(costs, winner) or (ld(costs, i) == ld(costs, winner) and i > winner)
        beaten += np.int64(worse and ld(marks, i) == 0)
    return winner, beaten * 2.0 / (m * (m - 1.0))


@inline
def rows(S: int, router: int) -> tuple[int, int, int, int]:
    """Addresses of the marks and the scratch costs: prefill marks, prefill costs, decode marks, decode costs."""
    return (
        ledger.prefill_row(S, router, L.PRE_OPEN),
        ledger.prefill_row(S, router, L.PRE_COST),
        ledger.decode_row(S, router, L.DEC_OPEN),
        ledger.decode_row(S, router, L.DEC_COST),
    )
