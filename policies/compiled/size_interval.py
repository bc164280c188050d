"""Size intervals: each instance serves an interval of sizes, and takes from others at a price.

    cost(p) = queued_work(p) + own_prefill(p) + price of the distance between p's interval and the prompt's
    cost(d) = projected_step(d) + price of the distance between d's interval and that of the predicted output

A mixed instance costs the sum of both. For each interval upwards or downwards the price is so many tokens, at the
instance's τ_pre, or so many decode steps of the instance's base.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...envs.simulator import constants as C
from ...envs.simulator import lanes as V
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline, rare
from ...envs.simulator.memory import ld, ld32, ldc, ldcf
from ...envs.simulator.slots import slot_at
from .projected_latency import project_decode, project_prefill
from .scores import add_prefill_costs, cheapest_decode, cheapest_prefill

STAGE = ("up", "down", "loose", "descending", "cuts")
"""Order of one stage's numbers in the parameter vector; `cuts` is their number; decode follows prefill, then the
cuts of prefill, then those of decode."""

_DECODE = 8 * len(STAGE)
_CUTS = 2 * _DECODE


@rare
def size_interval(S: int, router: int, parameters: int) -> tuple[int, int, float]:
    """Least cost in each pool; of a mixed instance the sum of both."""
    s = slot_at(S, ld(S, L.H_PENDING))
    price_prefill_intervals(S, router, s, parameters)
    price_decode_intervals(S, router, s, parameters)
    if ldc(S, L.H_MIXED) != 0:
        add_prefill_costs(S, router)
    d = cheapest_decode(ledger.decode_rows(S, router), ldc(S, L.H_DEC_GROUPS))
    if ldc(S, L.H_MIXED) != 0:
        return d, d, 1.0
    return cheapest_prefill(ledger.prefill_rows(S, router), ldc(S, L.H_PRE_GROUPS)), d, 1.0


@inline
def price_prefill_intervals(S: int, router: int, s: int, parameters: int) -> None:
    """Costs of the prefill rows."""
    project_prefill(S, router, s)
    interval = interval_of(ld32(s, L.S_PROMPT), s, parameters, parameters + _CUTS)
    rows, constants, n = ledger.prefill_rows(S, router), C.prefill_constants(S), ldc(S, L.H_ROUTED)
    for g in range(ldc(S, L.H_PRE_GROUPS)):
        price = price_of(g, n, interval, parameters) * V.load_floats(constants, C.C_TAU_PREFILL)
        V.store_floats(rows, L.PRE_COST, V.load_floats(rows, L.PRE_COST) + price)
        rows += L.PRE_GROUP * 8
        constants += C.C_PREFILL_GROUP * 8


@inline
def price_decode_intervals(S: int, router: int, s: int, parameters: int) -> None:
    """Costs of the decode rows."""
    stage = parameters + _DECODE
    project_decode(S, router, s, 0.0)
    cuts = parameters + _CUTS + 8 * int(ldcf(parameters, 4))
    interval = interval_of(ld32(s, L.S_PREDICTED), s, stage, cuts)
    rows, constants, n = ledger.decode_rows(S, router), C.decode_constants(S), ldc(S, L.H_DECODES)
    for g in range(ldc(S, L.H_DEC_GROUPS)):
        price = price_of(g, n, interval, stage) * V.load_floats(constants, C.C_BASE_DECODE)
        V.store_floats(rows, L.DEC_COST, V.load_floats(rows, L.DEC_COST) + price)
        rows += L.DEC_GROUP * 8
        constants += C.C_DECODE_GROUP * 8


@inline
def interval_of(tokens: int, s: int, stage: int, cuts: int) -> int:
    """How many cuts are at or below the size; that of a loose request is scaled."""
    size = np.float64(tokens)
    if ledger.is_tight(ld32(s, L.S_PLACE)) == 0:
        size = size * ldcf(stage, 2)
    interval = 0
    for k in range(int(ldcf(stage, 4))):
        interval += int(ldcf(cuts, k) <= size)
    return interval


@inline
def price_of(group: int, n: int, interval: int, stage: int) -> Any:
    """What the distance to the interval costs on the eight instances of a group, of n in the pool."""
    place = V.counting(group * V.WIDTH)
    above = n - 1 - interval - place if ldcf(stage, 3) != 0.0 else place - interval
    up, down = V.maximum(above, V.spread(0)), V.maximum(0 - above, V.spread(0))
    return V.to_floats(up) * ldcf(stage, 0) + V.to_floats(down) * ldcf(stage, 1)
