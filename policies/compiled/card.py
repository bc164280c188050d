"""CARD: small requests to the short servers, large ones to the long ones, medium ones as the backlog allows."""

from __future__ import annotations

import numpy as np

from ...envs.simulator import constants as C
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline, rare
from ...envs.simulator.memory import ld, ld32, ldc, ldcf, ldf
from ...envs.simulator.slots import grouped, slot_at
from .scores import CLOSED, add_prefill_costs, cheapest_between, value
from .work import queued_work, remaining_work

STAGE = ("small", "large", "threshold", "long")
"""Order of one stage's numbers in the parameter vector, `long` the number of long servers; decode follows prefill."""


@rare
def card(S: int, router: int, parameters: int) -> tuple[int, int, float]:
    """CARD in each pool; mixed instances by the numbers of decode, with the work of both stages."""
    s = slot_at(S, ld(S, L.H_PENDING))
    prompt, predicted = np.float64(ld32(s, L.S_PROMPT)), np.float64(ld32(s, L.S_PREDICTED))
    queued_work(S, router)
    remaining_work(S, router)
    if ldc(S, L.H_MIXED) != 0:
        add_prefill_costs(S, router)
    rows, n, stage = ledger.decode_rows(S, router), ldc(S, L.H_DECODES), parameters + 8 * len(STAGE)
    d, sure = short_or_long(rows, L.DEC_GROUP, L.DEC_COST, n, predicted, stage)
    if not sure:
        tau = ldf(grouped(C.decode_constants(S), C.C_DECODE_GROUP, d), C.C_TAU_DECODE)
        d = unless_busy(rows, L.DEC_GROUP, L.DEC_COST, n, d, tau, stage)
    if ldc(S, L.H_MIXED) != 0:
        return d, d, 1.0
    rows, n = ledger.prefill_rows(S, router), ldc(S, L.H_PREFILLS)
    p, sure = short_or_long(rows, L.PRE_GROUP, L.PRE_COST, n, prompt, parameters)
    if not sure:
        tau = ldf(grouped(C.prefill_constants(S), C.C_PREFILL_GROUP, p), C.C_TAU_PREFILL)
        p = unless_busy(rows, L.PRE_GROUP, L.PRE_COST, n, p, tau, parameters)
    return p, d, 1.0


@inline
def short_or_long(rows: int, group: int, work: int, n: int, size: float, stage: int) -> tuple[int, bool]:
    """The server for the size, and whether that is sure: for a medium one it is short as long as that is not busy."""
    shorts = n - int(ldcf(stage, 3))
    if shorts == n:  # a pool of one
        return 0, True
    short, long = cheapest_between(rows, group, work, 0, shorts), cheapest_between(rows, group, work, shorts, n)
    if value(rows, group, work, short) == CLOSED:
        return long, True
    if value(rows, group, work, long) == CLOSED or size < ldcf(stage, 0):
        return short, True
    if size >= ldcf(stage, 1):
        return long, True
    return short, False


@inline
def unless_busy(rows: int, group: int, work: int, n: int, short: int, tau: float, stage: int) -> int:
    """The short server if its work is below the threshold (tokens, at τ seconds each), else the long one of least."""
    if ldf(grouped(rows, group, short), work) < ldcf(stage, 2) * tau:
        return short
    return cheapest_between(rows, group, work, n - int(ldcf(stage, 3)), n)
