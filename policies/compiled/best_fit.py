"""Best fit: the fullest instance on which the request still meets its targets and the KV cache its limit.

A prefill instance is as full as its projected TTFT is long, a decode or mixed instance as its committed tokens are
many, this request's included, over its KV capacity.
"""

from __future__ import annotations

import numpy as np

from ...envs.simulator import constants as C
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline, rare
from ...envs.simulator.feature_rows import predicted_of, prompt_of, tpot_of, ttft_of
from ...envs.simulator.memory import ld, ldc, ldcf, ldf
from ...envs.simulator.slots import grouped, slot_at
from .projected_latency import project_decode, project_prefill

PARAMETERS = ("ttft_slack", "tpot_slack", "limit", "give_up")
"""Order in the parameter vector; `give_up` may be +inf."""


@rare
def best_fit(S: int, router: int, parameters: int) -> tuple[int, int, float]:
    """The best fit in each pool; of a mixed instance in both stages."""
    s = slot_at(S, ld(S, L.H_PENDING))
    project_prefill(S, router, s)
    project_decode(S, router, s, 0.0)
    d = best_decode(S, router, s, parameters)
    if ldc(S, L.H_MIXED) == 0:
        return best_prefill(S, router, s, parameters), d, 1.0
    if d < 0:
        d = best_prefill(S, router, s, parameters)
    return d, d, 1.0


@inline
def best_prefill(S: int, router: int, s: int, parameters: int) -> int:
    """The longest projected TTFT within slack · target; else the shortest, or beyond give_up · target the longest."""
    rows, target = ledger.prefill_rows(S, router), ttft_of(S, s)
    limit = ldcf(parameters, 0) * target
    fullest, emptiest, fitting = -1, -1, -1
    most, least, tightest = -np.inf, np.inf, -np.inf
    for p in range(ldc(S, L.H_ROUTED)):
        ttft = ldf(grouped(rows, L.PRE_GROUP, p), L.PRE_COST)
        if ttft == np.inf:  # closed
            continue
        if ttft > most:
            fullest, most = p, ttft
        if ttft < least:
            emptiest, least = p, ttft
        if tightest < ttft <= limit:
            fitting, tightest = p, ttft
    if fitting >= 0:
        return fitting
    return fullest if least > ldcf(parameters, 3) * target else emptiest


@inline
def best_decode(S: int, router: int, s: int, parameters: int) -> int:
    """The fullest instance that fits; if none does the least full one, or −1 where instances are mixed."""
    mixed = ldc(S, L.H_MIXED) != 0
    rows, first, constants = ledger.decode_rows(S, router), ledger.prefill_rows(S, router), C.decode_constants(S)
    ttft_limit, tpot_limit = ldcf(parameters, 0) * ttft_of(S, s), ldcf(parameters, 1) * tpot_of(S, s)
    tokens = prompt_of(s) + predicted_of(s)
    emptiest, fitting, least, most = -1, -1, np.inf, -np.inf
    for d in range(ldc(S, L.H_DECODES)):
        row = grouped(rows, L.DEC_GROUP, d)
        step = ldf(row, L.DEC_COST)
        if step == np.inf:  # closed
            continue
        capacity = ldcf(grouped(constants, C.C_DECODE_GROUP, d), C.C_DECODE_CAPACITY)
        pressure = (np.float64(ld(row, L.DEC_COMMITTED)) + tokens) / capacity
        if pressure < least:
            emptiest, least = d, pressure
        fits = pressure <= ldcf(parameters, 2) and step <= tpot_limit
        if mixed:
            fits = fits and ldf(grouped(first, L.PRE_GROUP, d), L.PRE_COST) <= ttft_limit
        if fits and pressure > most:
            fitting, most = d, pressure
    if fitting >= 0 or mixed:
        return fitting
    return emptiest
