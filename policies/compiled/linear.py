"""Linear: the least weighted sum of an instance's features, with weights that depend on the request (`weighing.py`)."""

from __future__ import annotations

from ...envs.simulator import layout as L
from ...envs.simulator.compile import rare
from ...envs.simulator.memory import ld, ldc
from ...envs.simulator.slots import slot_at
from .weighing import (
    DECODE_WORDS,
    PREFILL_WORDS,
    least_decode,
    least_prefill,
    weigh_decode,
    weigh_mixed,
    weigh_prefill,
)


@rare
def linear(S: int, router: int, state: int, parameters: int) -> tuple[int, int, float]:
    """Least cost in each pool."""
    s = slot_at(S, ld(S, L.H_PENDING))
    if ldc(S, L.H_MIXED) != 0:
        weigh_mixed(S, router, s, parameters + 8 * (PREFILL_WORDS + DECODE_WORDS), state, 0)
        m = least_decode(S, router)
        return m, m, 1.0
    weigh_prefill(S, router, s, parameters, state, 0)
    weigh_decode(S, router, s, parameters + 8 * PREFILL_WORDS, state, 0)
    return least_prefill(S, router), least_decode(S, router), 1.0
