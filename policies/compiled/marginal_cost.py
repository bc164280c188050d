"""The study's router: the time that this request would add on each candidate (arXiv 2609.16206, Algorithm 1).

    cost(d) = w_b·backlog(d)·σ + w_s·ô·τ(d)·(1 + ρ·press⁺(d))·σ + w_q·queue(d)

backlog(d) = τ(d) · Σ over the ledger's requests on d of remaining (or committed) output; press⁺(d) = (committed
tokens on d + p + ô) / KV capacity; σ by SLO class; queue(d) a count. Prefill candidates likewise, with p·τ_pre as
work and the prompts that await or are in prefill as backlog. τ are the router's constants, which need not be the
hardware's.
"""

from __future__ import annotations

import numpy as np

from ...envs.simulator import constants as C
from ...envs.simulator import lanes as V
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline
from ...envs.simulator.memory import ld, ld32, ldc, ldcf, st
from ...envs.simulator.slots import grouped, region, slot_at
from .baselines import WORD_RANDOM
from .scores import CLOSED, add_prefill_costs, better_of_two, cheapest_decode, cheapest_prefill, open_count, value

PARAMETERS = ("w_b", "w_s", "w_q", "rho", "sigma_tight", "sigma_loose", "single", "committed", "sample", "guard")
"""Order in the parameter vector; `single`, `committed` 0 or 1, `sample` 0 (all) or 2, `guard` ≥ 1 or +inf."""


@inline
def marginal_cost(S: int, router: int, state: int, parameters: int) -> tuple[int, int, float]:
    """Least marginal cost in each pool; of a mixed instance the sum of both."""
    s = slot_at(S, ld(S, L.H_PENDING))
    price_prefill(S, router, s, parameters)
    price_decode(S, router, s, parameters)
    if ldc(S, L.H_MIXED) != 0:
        add_prefill_costs(S, router)
        d, probability = pick_decode(S, router, state, parameters)
        return d, d, probability
    p, chance = pick_prefill(S, router, state, parameters)
    d, probability = pick_decode(S, router, state, parameters)
    return p, d, probability * chance


@inline
def sigma(s: int, parameters: int) -> float:
    """σ of the request's SLO class."""
    return ldcf(parameters, 4) if ledger.is_tight(ld32(s, L.S_PLACE)) != 0 else ldcf(parameters, 5)


@inline
def price_prefill(S: int, router: int, s: int, parameters: int) -> None:
    """Costs of the prefill rows."""
    prompt = np.float64(ld32(s, L.S_PROMPT))
    weight = sigma(s, parameters)
    w_b, w_s, w_q, rho = ldcf(parameters, 0), ldcf(parameters, 1), ldcf(parameters, 2), ldcf(parameters, 3)
    rows, constants = ledger.prefill_rows(S, router), C.prefill_constants(S)
    for _ in range(ldc(S, L.H_PRE_GROUPS)):
        tau, work = V.load_floats(constants, C.C_TAU_PREFILL), V.to_floats(V.load(rows, L.PRE_TOKENS))
        pressure = (work + prompt) / V.load_floats(constants, C.C_PREFILL_CAPACITY)
        cost = work * tau * w_b * weight + tau * prompt * w_s * (pressure * rho + 1.0) * weight
        cost = cost + V.to_floats(V.load(rows, L.PRE_QUEUED)) * w_q
        V.store_floats(rows, L.PRE_COST, cost + V.load_floats(rows, L.PRE_OPEN))
        rows += L.PRE_GROUP * 8
        constants += C.C_PREFILL_GROUP * 8


@inline
def price_decode(S: int, router: int, s: int, parameters: int) -> None:
    """Costs of the decode rows."""
    prompt, predicted = np.float64(ld32(s, L.S_PROMPT)), np.float64(ld32(s, L.S_PREDICTED))
    weight = sigma(s, parameters)
    w_b, w_s, w_q, rho = ldcf(parameters, 0), ldcf(parameters, 1), ldcf(parameters, 2), ldcf(parameters, 3)
    single, all_output = ldcf(parameters, 6) != 0.0, ldcf(parameters, 7) != 0.0
    # backlog = static + crossing sum − step · crossing count, or simply the committed output
    still = L.DEC_OUTPUT if all_output else L.DEC_STATIC
    streaming = 0 if all_output else 1
    clock = C.C_TAU_SINGLE if single else C.C_TAU_DECODE
    rows, leaps, constants = ledger.decode_rows(S, router), region(S, L.H_O_LEAP), C.decode_constants(S)
    for _ in range(ldc(S, L.H_DEC_GROUPS)):
        tau = V.load_floats(constants, clock)
        crossing = V.load(rows, L.DEC_CROSS_SUM) - V.load(leaps, L.LEAP_NOW) * V.load(rows, L.DEC_CROSS_COUNT)
        output = V.to_floats(V.load(rows, still) + crossing * streaming)
        committed = V.to_floats(V.load(rows, L.DEC_COMMITTED)) + (prompt + predicted)
        pressure = committed / V.load_floats(constants, C.C_DECODE_CAPACITY)
        cost = output * tau * w_b * weight + tau * predicted * w_s * (pressure * rho + 1.0) * weight
        cost = cost + V.to_floats(V.load(rows, L.DEC_IN_FLIGHT)) * w_q
        V.store_floats(rows, L.DEC_COST, cost + V.load_floats(rows, L.DEC_OPEN))
        rows += L.DEC_GROUP * 8
        leaps += L.LEAP_GROUP * 8
        constants += C.C_DECODE_GROUP * 8


@inline
def pick_prefill(S: int, router: int, state: int, parameters: int) -> tuple[int, float]:
    """The least cost in the prefill pool, within what the admission guard and the sampling leave."""
    rows, n = ledger.prefill_rows(S, router), ldc(S, L.H_PREFILLS)
    if ldcf(parameters, 9) < np.inf:
        guard_pool(rows, L.PRE_GROUP, L.PRE_OPEN, L.PRE_COST, L.PRE_QUEUED, n, ldcf(parameters, 9))
    if ldcf(parameters, 8) != 0.0:
        return better_of_two(rows, L.PRE_GROUP, L.PRE_OPEN, L.PRE_COST, n, state + 8 * WORD_RANDOM)
    return cheapest_prefill(rows, ldc(S, L.H_PRE_GROUPS)), 1.0


@inline
def pick_decode(S: int, router: int, state: int, parameters: int) -> tuple[int, float]:
    """The least cost in the decode (or mixed) pool, likewise."""
    rows, n = ledger.decode_rows(S, router), ldc(S, L.H_DECODES)
    if ldcf(parameters, 9) < np.inf:
        guard_pool(rows, L.DEC_GROUP, L.DEC_OPEN, L.DEC_COST, L.DEC_IN_FLIGHT, n, ldcf(parameters, 9))
    if ldcf(parameters, 8) != 0.0:
        return better_of_two(rows, L.DEC_GROUP, L.DEC_OPEN, L.DEC_COST, n, state + 8 * WORD_RANDOM)
    return cheapest_decode(rows, ldc(S, L.H_DEC_GROUPS)), 1.0


@inline
def guard_pool(rows: int, group: int, mark: int, cost: int, queue: int, n: int, guard: float) -> None:
    """Rules out instances with more than guard · (1 + mean) requests; with guard ≥ 1 the emptiest always remains."""
    total = 0
    for i in range(n):
        if value(rows, group, mark, i) == 0:
            total += value(rows, group, queue, i)
    limit = guard * (1.0 + total / np.float64(open_count(rows, group, mark, n)))
    for i in range(n):
        if np.float64(value(rows, group, queue, i)) > limit:
            st(grouped(rows, group, i), cost, CLOSED)
