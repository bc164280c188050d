"""Least projected TTFT, least projected TPOT: each stage by its own latency, by counts, or in turn.

    ttft(p) = Σ p over the prompts that await or are in prefill on p · τ_pre(p) + base(p) + c1(p)·p + c2(p)·p²
    tpot(d) = base(d) + b(d)·(B + 1) + C(d)·(K + growth·R + p + growth·ô)

B, K and R are the ledger's requests on d, their context and what is left of their predicted output. With `growth` 0
these are the features `queued_work` + `own_prefill` and `projected_step` of envs/features.py.
"""

from __future__ import annotations

import numpy as np

from ...envs import features as F
from ...envs.simulator import constants as C
from ...envs.simulator import lanes as V
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline, rare
from ...envs.simulator.least_loaded import emptiest_decode, emptiest_prefill
from ...envs.simulator.memory import ld, ld32, ldc, ldcf
from ...envs.simulator.slots import region, slot_at
from .baselines import next_decode, next_prefill
from .scores import add_prefill_costs, cheapest_decode, cheapest_prefill
from .work import remaining_outputs

PARAMETERS = ("prefill", "decode", "growth", "ttft")
"""Order in the parameter vector; the first two are ways; `ttft` 1: a mixed instance is judged by both latencies."""

LEAST_LOADED, IN_TURN, PROJECTED = range(3)
"""Ways to route a stage."""


@rare
def projected_latency(S: int, router: int, state: int, parameters: int) -> tuple[int, int, float]:
    """Each stage in its way; a mixed instance by its projected step, to which `ttft` adds the projected TTFT."""
    s = slot_at(S, ld(S, L.H_PENDING))
    if ldc(S, L.H_MIXED) != 0:
        project_decode(S, router, s, ldcf(parameters, 2))
        if ldcf(parameters, 3) != 0.0:
            project_prefill(S, router, s)
            add_prefill_costs(S, router)
        d = cheapest_decode(ledger.decode_rows(S, router), ldc(S, L.H_DEC_GROUPS))
        return d, d, 1.0
    way = ldcf(parameters, 0)
    if way == PROJECTED:
        project_prefill(S, router, s)
        p = cheapest_prefill(ledger.prefill_rows(S, router), ldc(S, L.H_PRE_GROUPS))
    elif way == IN_TURN:
        p = next_prefill(S, router, state)
    else:
        p = emptiest_prefill(S, router)
    way = ldcf(parameters, 1)
    if way == PROJECTED:
        project_decode(S, router, s, ldcf(parameters, 2))
        d = cheapest_decode(ledger.decode_rows(S, router), ldc(S, L.H_DEC_GROUPS))
    elif way == IN_TURN:
        d = next_decode(S, router, state)
    else:
        d = emptiest_decode(S, router)
    return p, d, 1.0


@inline
def project_prefill(S: int, router: int, s: int) -> None:
    """Costs of the prefill rows: the projected TTFT, s."""
    prompt = np.float64(ld32(s, L.S_PROMPT))
    rows, constants = ledger.prefill_rows(S, router), C.prefill_constants(S)
    for _ in range(ldc(S, L.H_PRE_GROUPS)):
        work = V.to_floats(V.load(rows, L.PRE_TOKENS)) * V.load_floats(constants, C.C_TAU_PREFILL)
        base, per_token = V.load_floats(constants, C.C_BASE_PREFILL), V.load_floats(constants, C.C_PER_TOKEN)
        own = F.own_prefill(prompt, base, per_token, V.load_floats(constants, C.C_PER_TOKEN_SQ))
        V.store_floats(rows, L.PRE_COST, work + own + V.load_floats(rows, L.PRE_OPEN))
        rows += L.PRE_GROUP * 8
        constants += C.C_PREFILL_GROUP * 8


@inline
def project_decode(S: int, router: int, s: int, growth: float) -> None:
    """Costs of the decode rows: the projected step, s."""
    prompt, predicted = np.float64(ld32(s, L.S_PROMPT)), np.float64(ld32(s, L.S_PREDICTED))
    own = prompt + growth * predicted
    rows, leaps, constants = ledger.decode_rows(S, router), region(S, L.H_O_LEAP), C.decode_constants(S)
    for _ in range(ldc(S, L.H_DEC_GROUPS)):
        streamed = V.load(rows, L.DEC_CONTEXT) + V.load(leaps, L.LEAP_NOW) * V.load(rows, L.DEC_STREAMS)
        remaining = V.to_floats(remaining_outputs(rows, leaps))
        context = V.to_floats(streamed) + remaining * growth + own
        sequences = V.to_floats(V.load(rows, L.DEC_IN_FLIGHT)) + 1.0
        base, per_sequence = V.load_floats(constants, C.C_BASE_DECODE), V.load_floats(constants, C.C_PER_SEQUENCE)
        tpot = F.projected_step(sequences, context, base, per_sequence, V.load_floats(constants, C.C_PER_CONTEXT))
        V.store_floats(rows, L.DEC_COST, tpot + V.load_floats(rows, L.DEC_OPEN))
        rows += L.DEC_GROUP * 8
        leaps += L.LEAP_GROUP * 8
        constants += C.C_DECODE_GROUP * 8
