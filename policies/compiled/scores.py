"""Scoring and picking: each pool gets a vector of costs, and the least open one wins, ties to the lowest.

Costs are kept as int64: counts as they are, float64 costs by their bits (which order like the floats, being ≥ 0). An
instance that may not be assigned is marked +inf, whose bits are above every count and every finite cost.

A pool is known by the address of its ledger rows; its size, its fields and the words of its groups differ by stage.
"""

from __future__ import annotations

from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline
from ...envs.simulator.least_loaded import cheapest_decode as cheapest_decode
from ...envs.simulator.least_loaded import cheapest_prefill as cheapest_prefill
from ...envs.simulator.memory import ld, ldc, ldf, stf
from ...envs.simulator.slots import grouped
from .randomness import below

CLOSED = 0x7FF0000000000000
"""Bits of +inf."""


@inline
def value(rows: int, group: int, field: int, i: int) -> int:
    """A field of instance i."""
    return ld(grouped(rows, group, i), field)


@inline
def cheapest_between(rows: int, group: int, field: int, low: int, high: int) -> int:
    """The instance of least cost (`field`) in [low, high), which is not empty."""
    found, smallest = low, value(rows, group, field, low)
    for i in range(low + 1, high):
        cost = value(rows, group, field, i)
        if cost < smallest:
            found, smallest = i, cost
    return found


@inline
def add_prefill_costs(S: int, router: int) -> None:
    """A mixed instance costs what it costs in both stages."""
    prefill, decode = ledger.prefill_rows(S, router), ledger.decode_rows(S, router)
    for m in range(ldc(S, L.H_DECODES)):
        row = grouped(decode, L.DEC_GROUP, m)
        stf(row, L.DEC_COST, ldf(grouped(prefill, L.PRE_GROUP, m), L.PRE_COST) + ldf(row, L.DEC_COST))


@inline
def open_count(rows: int, group: int, mark: int, n: int) -> int:
    """How many instances may be assigned."""
    count = 0
    for i in range(n):
        count += int(value(rows, group, mark, i) == 0)
    return count


@inline
def nth_open(rows: int, group: int, mark: int, n: int, nth: int) -> int:
    """The nth instance (from 0) that may be assigned."""
    for i in range(n):
        if value(rows, group, mark, i) == 0:
            if nth == 0:
                return i
            nth -= 1
    return -1


@inline
def any_of(rows: int, group: int, mark: int, n: int, rng: int) -> int:
    """One open instance, each equally likely."""
    return nth_open(rows, group, mark, n, below(rng, open_count(rows, group, mark, n)))


@inline
def better_of_two(rows: int, group: int, mark: int, cost: int, n: int, rng: int) -> tuple[int, float]:
    """The cheaper of two different open instances drawn at random, and the probability of that outcome.

    An instance wins with as many of the C(m, 2) pairs as there are open ones that it beats.
    """
    m = open_count(rows, group, mark, n)
    if m == 1:
        return nth_open(rows, group, mark, n, 0), 1.0
    first = below(rng, m)
    second = below(rng, m - 1)
    second += int(second >= first)
    a = nth_open(rows, group, mark, n, min(first, second))
    b = nth_open(rows, group, mark, n, max(first, second))
    winner = b if value(rows, group, cost, b) < value(rows, group, cost, a) else a
    least = value(rows, group, cost, winner)
    beaten = 0
    for i in range(n):
        other = value(rows, group, cost, i)
        worse = other > least or (other == least and i > winner)
        beaten += int(worse and value(rows, group, mark, i) == 0)
    return winner, beaten * 2.0 / (m * (m - 1.0))
