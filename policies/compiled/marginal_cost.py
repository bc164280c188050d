"""The study's router: the time that this request would add on each candidate (arXiv 2609.16206, Algorithm 1).

    cost(d) = w_b·backlog(d)·σ + w_s·ô·τ(d)·(1 + ρ·press⁺(d))·σ + w_q·queue(d)

backlog(d) = τ(d) · Σ over the ledger's requests on d of remaining (or committed) output; press⁺(d) = (committed tokens on d
+ p + ô) / KV capacity; σ by SLO class; queue(d) a count. Prefill candidates likewise, with p·τ_pre as work and the
prompts that await or are in prefill as backlog. τ are the router's constants, which need not be the hardware's.
"""

from __future__ import annotations

import numpy as np

from ...envs.simulator import constants as C
from ...envs.simulator import lanes as V
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline
from ...envs.simulator.memory import ld, ld32, ldc, ldcf, ldf, st, stf
from ...envs.simulator.slots import leap_at, slot_at
from .baselines import WORD_RANDOM
from .scores import CLOSED, better_of_two, open_count, rows

PARAMETERS = ("w_b", "w_s", "w_q", "rho", "sigma_tight", "sigma_loose", "single", "committed", "sample", "guard")
"""Order in the parameter vector; `single`, `committed` 0 or 1, `sample` 0 (all) or 2, `guard` ≥ 1 or +inf."""


@inline
def marginal_cost(S: int, router: int, state: int, parameters: int) -> tuple[int, int, float]:
    """Least marginal cost in each pool; of a mixed instance the sum of both."""
    pre_marks, pre_costs, dec_marks, dec_costs = rows(S, router)
    s = slot_at(S, ld(S, L.H_PENDING))
    price_prefill(S, router, s, parameters)
    price_decode(S, router, s, parameters)
    prefills, decodes = ldc(S, L.H_PREFILLS), ldc(S, L.H_DECODES)
    if ldc(S, L.H_MIXED) != 0:
        for m in range(decodes):
            total = ldf(pre_costs, m) + ldf(dec_costs, m)
            stf(dec_costs, m, total)
        d, probability = cheapest(
            S, dec_costs, dec_marks, ledger.decode_row(S, router, L.DEC_IN_FLIGHT), decodes, state, parameters
        )
        return d, d, probability
    p, chance = cheapest(
        S, pre_costs, pre_marks, ledger.prefill_row(S, router, L.PRE_QUEUED), prefills, state, parameters
    )
    d, probability = cheapest(
        S, dec_costs, dec_marks, ledger.decode_row(S, router, L.DEC_IN_FLIGHT), decodes, state, parameters
    )
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
    costs = ledger.prefill_row(S, router, L.PRE_COST)
    marks = ledger.prefill_row(S, router, L.PRE_OPEN)
    queued, tokens = ledger.prefill_row(S, router, L.PRE_QUEUED), ledger.prefill_row(S, router, L.PRE_TOKENS)
    taus, capacities = C.prefill_constant(S, C.C_TAU_PREFILL), C.prefill_constant(S, C.C_PREFILL_CAPACITY)
    for i in range(0, ldc(S, L.H_PRE_PAD), L.LANES):
        tau, work = V.load_floats(taus, i), V.to_floats(V.load(tokens, i))
        pressure = (work + prompt) / V.load_floats(capacities, i)
        cost = work * tau * w_b * weight + tau * prompt * w_s * (pressure * rho + 1.0) * weight
        cost = cost + V.to_floats(V.load(queued, i)) * w_q
        V.store_floats(costs, i, cost + V.load_floats(marks, i))


@inline
def price_decode(S: int, router: int, s: int, parameters: int) -> None:
    """Costs of the decode rows."""
    prompt, predicted = np.float64(ld32(s, L.S_PROMPT)), np.float64(ld32(s, L.S_PREDICTED))
    weight = sigma(s, parameters)
    w_b, w_s, w_q, rho = ldcf(parameters, 0), ldcf(parameters, 1), ldcf(parameters, 2), ldcf(parameters, 3)
    single, all_output = ldcf(parameters, 6) != 0.0, ldcf(parameters, 7) != 0.0
    costs = ledger.decode_row(S, router, L.DEC_COST)
    marks = ledger.decode_row(S, router, L.DEC_OPEN)
    in_flight, committed = (
        ledger.decode_row(S, router, L.DEC_IN_FLIGHT),
        ledger.decode_row(S, router, L.DEC_COMMITTED),
    )
    # backlog = static + crossing sum − step · crossing count, or simply the committed output
    still = ledger.decode_row(S, router, L.DEC_OUTPUT if all_output else L.DEC_STATIC)
    sums, counts = ledger.decode_row(S, router, L.DEC_CROSS_SUM), ledger.decode_row(S, router, L.DEC_CROSS_COUNT)
    now = leap_at(S, L.LEAP_NOW)
    streaming = 0 if all_output else 1
    taus = C.decode_constant(S, C.C_TAU_SINGLE if single else C.C_TAU_DECODE)
    capacities = C.decode_constant(S, C.C_DECODE_CAPACITY)
    for i in range(0, ldc(S, L.H_DEC_PAD), L.LANES):
        tau = V.load_floats(taus, i)
        output = V.load(still, i) + (V.load(sums, i) - V.load(now, i) * V.load(counts, i)) * streaming
        pressure = (V.to_floats(V.load(committed, i)) + (prompt + predicted)) / V.load_floats(capacities, i)
        cost = V.to_floats(output) * tau * w_b * weight + tau * predicted * w_s * (pressure * rho + 1.0) * weight
        cost = cost + V.to_floats(V.load(in_flight, i)) * w_q
        V.store_floats(costs, i, cost + V.load_floats(marks, i))


@inline
def cheapest(
    S: int, costs: int, marks: int, queue: int, n: int, state: int, parameters: int
) -> tuple[int, float]:
    """The least cost, within what the admission guard and the sampling leave."""
    guard = ldcf(parameters, 9)
    if guard < np.inf:
        guard_against_crowding(costs, marks, queue, n, guard)
    if ldcf(parameters, 8) != 0.0:
        return better_of_two(costs, marks, n, state + 8 * WORD_RANDOM)
    return V.first_least(costs, (n + L.LANES - 1) & -L.LANES), 1.0


@inline
def guard_against_crowding(costs: int, marks: int, queue: int, n: int, guard: float) -> None:
    """Rules out instances with more than guard · (1 + mean) requests; with guard ≥ 1 the emptiest always remains."""
    total = 0
    for i in range(n):
        if ld(marks, i) == 0:
            total += ld(queue, i)
    limit = guard * (1.0 + total / np.float64(open_count(marks, n)))
    for i in range(n):
        if np.float64(ld(queue, i)) > limit:
            st(costs, i, CLOSED)
