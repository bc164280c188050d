"""The baselines: round robin, random, power of two choices, length threshold (least loaded is in `envs/simulator`).

Each returns (prefill, decode, probability of the choice). In an aggregated cluster both are the one mixed instance.
"""

from __future__ import annotations

import numpy as np

from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline
from ...envs.simulator.least_loaded import count_decodes, count_prefills, emptiest_prefill
from ...envs.simulator.memory import ld, ld32, ldc, ldcf, st
from ...envs.simulator.slots import slot_at
from .median import median_of, observe
from .scores import (
    any_of,
    better_of_two,
    cheapest_between,
    open_count,
    value,
)

WORD_PREFILL, WORD_DECODE, WORD_RANDOM, WORD_MEDIAN = 0, 1, 2, 3
"""Where a policy keeps its state: next prefill and decode index, random state, running median."""


@inline
def next_open(rows: int, group: int, mark: int, n: int, pointer: int) -> int:
    """The first open instance from the pointer on, cyclically; the pointer moves behind it."""
    i = ld(pointer, 0)
    while value(rows, group, mark, i) != 0:
        i = i + 1 if i + 1 < n else 0
    st(pointer, 0, i + 1 if i + 1 < n else 0)
    return i


@inline
def next_prefill(S: int, router: int, state: int) -> int:
    """The prefill instance whose turn it is."""
    rows = ledger.prefill_rows(S, router)
    return next_open(rows, L.PRE_GROUP, L.PRE_OPEN, ldc(S, L.H_PREFILLS), state + 8 * WORD_PREFILL)


@inline
def next_decode(S: int, router: int, state: int) -> int:
    """The decode (or mixed) instance whose turn it is."""
    rows = ledger.decode_rows(S, router)
    return next_open(rows, L.DEC_GROUP, L.DEC_OPEN, ldc(S, L.H_DECODES), state + 8 * WORD_DECODE)


@inline
def round_robin(S: int, router: int, state: int) -> tuple[int, int, float]:
    """Each pool in turn."""
    d = next_decode(S, router, state)
    if ldc(S, L.H_MIXED) != 0:
        return d, d, 1.0
    return next_prefill(S, router, state), d, 1.0


@inline
def random_pair(S: int, router: int, state: int) -> tuple[int, int, float]:
    """Each instance of a pool equally likely."""
    rng = state + 8 * WORD_RANDOM
    rows, n = ledger.decode_rows(S, router), ldc(S, L.H_DECODES)
    d = any_of(rows, L.DEC_GROUP, L.DEC_OPEN, n, rng)
    probability = 1.0 / open_count(rows, L.DEC_GROUP, L.DEC_OPEN, n)
    if ldc(S, L.H_MIXED) != 0:
        return d, d, probability
    rows, n = ledger.prefill_rows(S, router), ldc(S, L.H_PREFILLS)
    p = any_of(rows, L.PRE_GROUP, L.PRE_OPEN, n, rng)
    return p, d, probability / open_count(rows, L.PRE_GROUP, L.PRE_OPEN, n)


@inline
def power_of_two(S: int, router: int, state: int) -> tuple[int, int, float]:
    """The less loaded of two drawn at random, in each pool."""
    count_decodes(S, router)
    rng = state + 8 * WORD_RANDOM
    rows = ledger.decode_rows(S, router)
    d, chance = better_of_two(rows, L.DEC_GROUP, L.DEC_OPEN, L.DEC_COST, ldc(S, L.H_DECODES), rng)
    if ldc(S, L.H_MIXED) != 0:
        return d, d, chance
    count_prefills(S, router)
    rows = ledger.prefill_rows(S, router)
    p, other = better_of_two(rows, L.PRE_GROUP, L.PRE_OPEN, L.PRE_COST, ldc(S, L.H_PREFILLS), rng)
    return p, d, chance * other


@inline
def length_threshold(S: int, router: int, state: int, parameters: int) -> tuple[int, int, float]:
    """Long outputs to the upper half of the decode pool, short ones to the lower; least loaded inside."""
    count_decodes(S, router)
    rows = ledger.decode_rows(S, router)
    predicted = ld32(slot_at(S, ld(S, L.H_PENDING)), L.S_PREDICTED)
    threshold = ldcf(parameters, 0)
    if np.isnan(threshold):
        threshold = median_of(state + 8 * WORD_MEDIAN)
        observe(state + 8 * WORD_MEDIAN, np.float64(predicted))
    decodes = ldc(S, L.H_DECODES)
    half = (decodes + 1) >> 1
    low, high = (half, decodes) if predicted > threshold else (0, half)
    d = cheapest_between(rows, L.DEC_GROUP, L.DEC_COST, low, high) if low < high else high
    if d == high or value(rows, L.DEC_GROUP, L.DEC_OPEN, d) != 0:  # nothing open in that half
        d = cheapest_between(rows, L.DEC_GROUP, L.DEC_COST, 0, decodes)
    if ldc(S, L.H_MIXED) != 0:
        return d, d, 1.0
    return emptiest_prefill(S, router), d, 1.0
