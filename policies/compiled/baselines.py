"""The baselines: round robin, random, least loaded, power of two choices, length threshold.

Each returns (prefill, decode, probability of the choice). In an aggregated cluster both are the one mixed instance.
"""

from __future__ import annotations

import numpy as np

from ...envs.simulator import lanes as V
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline
from ...envs.simulator.memory import ld, ld32, ldc, ldcf, st
from ...envs.simulator.slots import slot_at
from .median import median_of, observe
from .scores import any_of, better_of_two, least_between, mask_counts, open_count, rows

WORD_PREFILL, WORD_DECODE, WORD_RANDOM, WORD_MEDIAN = 0, 1, 2, 3
"""Where a policy keeps its state: next prefill and decode index, random state, running median."""


@inline
def next_open(marks: int, n: int, pointer: int) -> int:
    """The first open instance from the pointer on, cyclically; the pointer moves behind it."""
    i = ld(pointer, 0)
    while ld(marks, i) != 0:
        i = i + 1 if i + 1 < n else 0
    st(pointer, 0, i + 1 if i + 1 < n else 0)
    return i


@inline
def round_robin(S: int, router: int, state: int) -> tuple[int, int, float]:
    """Each pool in turn."""
    pre_marks, _pre_costs, dec_marks, _dec_costs = rows(S, router)
    d = next_open(dec_marks, ldc(S, L.H_DECODES), state + 8 * WORD_DECODE)
    if ldc(S, L.H_MIXED) != 0:
        return d, d, 1.0
    return next_open(pre_marks, ldc(S, L.H_PREFILLS), state + 8 * WORD_PREFILL), d, 1.0


@inline
def random_pair(S: int, router: int, state: int) -> tuple[int, int, float]:
    """Each instance of a pool equally likely."""
    pre_marks, _pre_costs, dec_marks, _dec_costs = rows(S, router)
    rng = state + 8 * WORD_RANDOM
    decodes = ldc(S, L.H_DECODES)
    d = any_of(dec_marks, decodes, rng)
    probability = 1.0 / open_count(dec_marks, decodes)
    if ldc(S, L.H_MIXED) != 0:
        return d, d, probability
    prefills = ldc(S, L.H_PREFILLS)
    return any_of(pre_marks, prefills, rng), d, probability / open_count(pre_marks, prefills)


@inline
def count_requests(S: int, router: int) -> None:
    """Costs of both pools: requests of that stage in the ledger."""
    pre_marks, pre_costs, dec_marks, dec_costs = rows(S, router)
    mask_counts(pre_costs, ledger.prefill_row(S, router, L.PRE_QUEUED), pre_marks, ldc(S, L.H_PRE_PAD))
    mask_counts(dec_costs, ledger.decode_row(S, router, L.DEC_IN_FLIGHT), dec_marks, ldc(S, L.H_DEC_PAD))


@inline
def least_loaded(S: int, router: int) -> tuple[int, int, float]:
    """Fewest requests of that stage."""
    count_requests(S, router)
    _pre_marks, pre_costs, _dec_marks, dec_costs = rows(S, router)
    d = V.first_least(dec_costs, ldc(S, L.H_DEC_PAD))
    if ldc(S, L.H_MIXED) != 0:
        return d, d, 1.0
    return V.first_least(pre_costs, ldc(S, L.H_PRE_PAD)), d, 1.0


@inline
def power_of_two(S: int, router: int, state: int) -> tuple[int, int, float]:
    """The less loaded of two drawn at random, in each pool."""
    count_requests(S, router)
    pre_marks, pre_costs, dec_marks, dec_costs = rows(S, router)
    rng = state + 8 * WORD_RANDOM
    d, probability = better_of_two(dec_costs, dec_marks, ldc(S, L.H_DECODES), rng)
    if ldc(S, L.H_MIXED) != 0:
        return d, d, probability
    p, other = better_of_two(pre_costs, pre_marks, ldc(S, L.H_PREFILLS), rng)
    return p, d, probability * other


@inline
def length_threshold(S: int, router: int, state: int, parameters: int) -> tuple[int, int, float]:
    """Long outputs to the upper half of the decode pool, short ones to the lower; least loaded inside."""
    count_requests(S, router)
    _pre_marks, pre_costs, _dec_marks, dec_costs = rows(S, router)
    predicted = ld32(slot_at(S, ld(S, L.H_PENDING)), L.S_PREDICTED)
    threshold = ldcf(parameters, 0)
    if np.isnan(threshold):
        threshold = median_of(state + 8 * WORD_MEDIAN)
        observe(state + 8 * WORD_MEDIAN, np.float64(predicted))
    decodes = ldc(S, L.H_DECODES)
    half = (decodes + 1) >> 1
    low, high = (half, decodes) if predicted > threshold else (0, half)
    d = least_between(dec_costs, low, high) if low < high else high
    if d == high or ld(ledger.decode_row(S, router, L.DEC_OPEN), d) != 0:  # nothing open in that half
        d = least_between(dec_costs, 0, decodes)
    if ldc(S, L.H_MIXED) != 0:
        return d, d, 1.0
    return V.first_least(pre_costs, ldc(S, L.H_PRE_PAD)), d, 1.0
