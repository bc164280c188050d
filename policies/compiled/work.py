"""Work left: what an instance still has to do for the requests in the ledger, in seconds."""

from __future__ import annotations

from typing import Any

from ...envs.simulator import constants as C
from ...envs.simulator import lanes as V
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline
from ...envs.simulator.memory import ldc
from ...envs.simulator.slots import region


@inline
def remaining_outputs(rows: int, leaps: int) -> Any:
    """Σ max(0, ô − g) over the ledger's requests, of the eight instances of a group of decode rows."""
    crossing = V.load(rows, L.DEC_CROSS_SUM) - V.load(leaps, L.LEAP_NOW) * V.load(rows, L.DEC_CROSS_COUNT)
    return V.load(rows, L.DEC_STATIC) + crossing


@inline
def queued_work(S: int, router: int) -> None:
    """Costs of the prefill rows: the feature `queued_work`."""
    rows, constants = ledger.prefill_rows(S, router), C.prefill_constants(S)
    for _ in range(ldc(S, L.H_PRE_GROUPS)):
        work = V.to_floats(V.load(rows, L.PRE_TOKENS)) * V.load_floats(constants, C.C_TAU_PREFILL)
        V.store_floats(rows, L.PRE_COST, work + V.load_floats(rows, L.PRE_OPEN))
        rows += L.PRE_GROUP * 8
        constants += C.C_PREFILL_GROUP * 8


@inline
def remaining_work(S: int, router: int) -> None:
    """Costs of the decode rows: the feature `remaining_work`."""
    rows, leaps, constants = ledger.decode_rows(S, router), region(S, L.H_O_LEAP), C.decode_constants(S)
    for _ in range(ldc(S, L.H_DEC_GROUPS)):
        work = V.to_floats(remaining_outputs(rows, leaps)) * V.load_floats(constants, C.C_TAU_DECODE)
        V.store_floats(rows, L.DEC_COST, work + V.load_floats(rows, L.DEC_OPEN))
        rows += L.DEC_GROUP * 8
        leaps += L.LEAP_GROUP * 8
        constants += C.C_DECODE_GROUP * 8
